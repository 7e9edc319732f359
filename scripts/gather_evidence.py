"""Run campaigns that kill, and keep what they found: ``python scripts/gather_evidence.py [NAME …]``.

Without names, all of them: that takes hours. Each one replaces what was kept of it (`tallystick.evidence`), whatever it
found; the tables of guarantees are made from that: ``python scripts/generate_docs.py``. A campaign that could not be
carried out to its end keeps nothing and is reported.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tallystick import evidence

ROOT = Path(__file__).resolve().parents[1]
CONNECTORS = "tests/chaos/test_prover_connectors.py"
FEW = "--kills 12 --workers 5"
SOME = "--kills 40 --workers 14"
MANY = "--kills 75 --workers 24"
TESTS = {
    "matrix-files": "tests/chaos/test_kill_matrix.py -k exactly_once",
    "matrix-kafka": "tests/chaos/test_kafka_kill_matrix.py -k exactly_once",
    "matrix-postgresql-redis": "tests/chaos/test_databases_kill_matrix.py -k exactly_once",
    "matrix-cassandra-opensearch": "tests/chaos/test_applied_kill_matrix.py -k exactly_once",
    "matrix-kinesis-socket": "tests/chaos/test_applied_kill_matrix.py -k sent",
    "matrix-hdfs-s3-delta": "tests/chaos/test_lake_kill_matrix.py -k together",
    "matrix-kinesis-to-kafka": "tests/chaos/test_kinesis_kill_matrix.py -k kafka-",
    "matrix-kinesis-to-postgresql": "tests/chaos/test_kinesis_kill_matrix.py -k postgresql-",
    "matrix-rabbitmq-to-kafka": "tests/chaos/test_rabbit_kill_matrix.py -k any_point",
    "matrix-rabbitmq-receiver": "tests/chaos/test_receiver_kill_matrix.py -k any_point",
    "prove-kinesis-socket": f"{CONNECTORS} -k at_least_once",
    "prove-receivers": f"{CONNECTORS} -k received",
}
"""Kill matrices and campaigns of the prover that are tests, the long ones too: arguments of pytest."""
PROOFS = {
    "prove-postgresql-redis": f"tests/chaos/prove_connectors.py:databases {SOME} --seed 41",
    "prove-cassandra-opensearch": f"tests/chaos/prove_connectors.py:search {SOME} --seed 42",
    "prove-hdfs-s3-delta": f"tests/chaos/prove_connectors.py:lake {SOME} --seed 43",
    "prove-kinesis-to-postgresql": f"tests/chaos/prove_connectors.py:kinesis_to_postgresql {SOME} --seed 45",
    "prove-sends": f"tests/chaos/prove_connectors.py:sends {FEW} --seed 44",
    "prove-kafka-and-files": f"tests/chaos/prove_jobs.py:two_outputs {MANY} --seed 47",
    "prove-on-a-cluster": "tests/chaos/prove_jobs.py:files_to_files --cluster --kills 24 --workers 11 --seed 49",
    "prove-files": f"tests/chaos/prove_jobs.py:files_to_files {MANY} --seed 48",
    "prove-kafka": f"examples/kafka_passthrough.py {MANY} --seed 205",
    "prove-running-count": f"examples/app_pv_count.py {MANY} --seed 206",
}
"""The prover: arguments of ``tallystick prove``. One that shows repeats ends with 1, and counts."""


def commands() -> dict[str, str]:
    tests = {name: f"pytest {arguments} -m ''" for name, arguments in TESTS.items()}
    return tests | {name: f"tallystick prove {arguments}" for name, arguments in PROOFS.items()}


def run(name: str, command: str) -> bool:
    """True if it came to its end, and its notes are kept."""
    words = command.replace(" -m ''", "").split()
    module, rest = ("pytest", [*words[1:], "-m", ""]) if words[0] == "pytest" else ("tallystick", words[1:])
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch, "notes")
        environment = {**os.environ, evidence.ENVIRONMENT: str(found)}
        ended = subprocess.run([sys.executable, "-m", module, *rest], cwd=ROOT, env=environment, check=False)
        notes = evidence.notes_in(found)
    failed = ended.returncode != 0 and not (module == "tallystick" and notes)
    if failed or not notes:
        print(f"{name}: ended with {ended.returncode} and {len(notes)} notes: nothing is kept", file=sys.stderr)
        return False
    kept = evidence.kept()
    date = time.strftime("%Y-%m-%d", time.gmtime())
    kept[name] = {"command": command, "date": date, "notes": [note.to_json() for note in notes]}
    evidence.keep(kept)
    print(f"{name}: {sum(note.kills for note in notes)} kills")
    return True


def main(names: list[str]) -> int:
    known = commands()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"there is no campaign {unknown[0]!r}: needed some of {', '.join(known)}")
    done = [run(name, known[name]) for name in names or known]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
