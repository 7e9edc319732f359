"""The scripts that Redis runs. Each is atomic: nobody sees it half done, and a crash leaves all of it or nothing.

A slice is one hash, so that it is there as a whole or not at all::

    attempt     EPOCH GENERATION
    0, 1, …     its chunks of rows; each is removed by the script that applies it
    sealed      how many chunks it has, once it is pre-committed
    next, at    the progress token: the next chunk to apply, and the byte in it

Why that is exactly-once, with commands that are not idempotent:

1.  A chunk's commands and the progress token change in one script. Applying it again finds the token and does nothing.
2.  A command that fails in the middle (somebody changed the type of its key) stops there, and the token says where: the
    rows before it are never applied again, and the next try goes on with the one that failed.
3.  The guard is the newest attempt that began. An older one is over by then, or lost the decision: its driver is a
    zombie and is refused, and so is a task of it that wants to begin, or to add to what was rolled back.
"""

from __future__ import annotations

_READ_ATTEMPTS = """
local function older(guard, epoch, generation)
  local held = redis.call('HMGET', guard, 'epoch', 'generation')
  if not held[1] then return false end
  local e, g = tonumber(held[1]), tonumber(held[2])
  return epoch < e or (epoch == e and generation < g)
end
"""

BEGIN = (
    _READ_ATTEMPTS
    + """
local slice, guard, open = KEYS[1], KEYS[2], KEYS[3]
local epoch, generation = tonumber(ARGV[1]), tonumber(ARGV[2])
if older(guard, epoch, generation) then return redis.call('HMGET', guard, 'epoch', 'generation') end
redis.call('HSET', guard, 'epoch', ARGV[1], 'generation', ARGV[2])
redis.call('HSET', slice, 'attempt', ARGV[1] .. ' ' .. ARGV[2], 'next', 0, 'at', 1)
redis.call('HSET', open, ARGV[3], redis.call('TIME')[1])
return {}
"""
)
"""Keys: slice, guard, list of open ones; arguments: epoch, generation, name. Empty, or the newer attempt."""

LOOK = """
local wanted, why = ARGV[1], {}
for place, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  why[place] = ''
  if kind ~= 'none' and kind ~= wanted then
    why[place] = 'it holds a ' .. kind
  elseif wanted == 'string' and kind == 'string' and not string.match(redis.call('GET', key), '^-?%d+$') then
    why[place] = 'its value is not an integer'
  end
end
return why
"""
"""Keys: those of rows; argument: the type that they must have. For each why it cannot be, or nothing."""

ADD = """
local slice, number, chunk, wanted = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if redis.call('HEXISTS', slice, 'attempt') == 0 then return {'gone'} end
if wanted ~= '' then
  local at, seen = 1, {}
  while at <= #chunk do
    local count, first = struct.unpack('>I4', chunk, at)
    local size = struct.unpack('>I4', chunk, first)
    local key = string.sub(chunk, first + 4, first + 3 + size)
    if not seen[key] then
      seen[key] = true
      local kind = redis.call('TYPE', key).ok
      if kind ~= 'none' and kind ~= wanted then return {'refused', key, 'it holds a ' .. kind} end
      if wanted == 'string' and kind == 'string' and not string.match(redis.call('GET', key), '^-?%d+$') then
        return {'refused', key, 'its value is not an integer'}
      end
    end
    at = first
    for _ = 1, count do at = at + 4 + struct.unpack('>I4', chunk, at) end
  end
end
redis.call('HSET', slice, number, chunk)
return {'added'}
"""
"""Key: slice; arguments: number of the chunk, the chunk, the type that its keys must have (or none)."""

SEAL = """
local slice, count = KEYS[1], tonumber(ARGV[1])
if redis.call('HEXISTS', slice, 'attempt') == 0 then return 'gone' end
if tonumber(redis.call('HGET', slice, 'sealed') or -1) == count then return 'sealed' end
if redis.call('HLEN', slice) ~= count + 3 then return 'missing' end
redis.call('HSET', slice, 'sealed', count)
return 'sealed'
"""
"""Key: slice; argument: how many chunks were added."""

APPLY = (
    _READ_ATTEMPTS
    + """
local slice, guard = KEYS[1], KEYS[2]
local number, command = tonumber(ARGV[1]), ARGV[4]
local held = redis.call('HMGET', slice, 'sealed', 'next', 'at')
if not held[2] then return {'gone'} end
if not held[1] then return {'begun'} end
local following = tonumber(held[2])
if following > number then return {'done'} end
if following < number then return {'later'} end
if older(guard, tonumber(ARGV[2]), tonumber(ARGV[3])) then return {'fenced', following} end
local chunk = redis.call('HGET', slice, ARGV[1])
if not chunk then return {'missing'} end
local at, formats = tonumber(held[3]), {}
while at <= #chunk do
  local count, first = struct.unpack('>I4', chunk, at)
  if not formats[count] then formats[count] = '>' .. string.rep('I4c0', count) end
  local arguments = {struct.unpack(formats[count], chunk, first)}
  local after = table.remove(arguments)
  local answer = redis.pcall(command, unpack(arguments))
  if type(answer) == 'table' and answer.err then
    redis.call('HSET', slice, 'at', at)
    return {'refused', arguments[1], answer.err}
  end
  at = after
end
redis.call('HDEL', slice, ARGV[1])
redis.call('HSET', slice, 'next', number + 1, 'at', 1)
return {'applied'}
"""
)
"""Keys: slice, guard; arguments: number of the chunk, epoch, generation, command."""

DROP = """
redis.call('UNLINK', KEYS[1])
return redis.call('HDEL', KEYS[2], ARGV[1])
"""
"""Keys: slice, list of open ones; argument: name."""
