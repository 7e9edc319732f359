"""Orders into PostgreSQL; those that the table refuses into files, with the reason, in the same epoch.

    tallystick run examples/orders_with_dead_letters.py --available-now

The table has rules: a price above zero, and a customer. One order in a hundred breaks one of them. None of them stops
the job, none is lost, and none is there twice, wherever the job is killed.
"""

import os
from pathlib import Path

import tallystick as ts

POSTGRESQL = os.environ.get("POSTGRESQL", "postgresql://postgres@127.0.0.1:5432/postgres")
ORDERS = os.environ.get("ORDERS", "checked_orders")
WORK = Path(os.environ.get("WORK", "work"))
COUNT = int(os.environ.get("COUNT", "10000"))

TABLE = f"CREATE TABLE IF NOT EXISTS {ORDERS} (id bigint, customer text NOT NULL, cents bigint CHECK (cents > 0))"
"""What the table looks like: make it before the job starts."""


def order(number: int) -> dict[str, object]:
    """Order N, always the same: a stand-in for whatever orders come from."""
    customer = None if number % 200 == 99 else f"customer-{number % 97}"
    return {"id": number, "customer": customer, "cents": -1 if number % 200 == 199 else 100 + number * 31 % 9900}


job = ts.Job(
    "checked-orders",
    source=ts.sources.Collection(
        order, length=COUNT, schema="id long, customer string, cents long", per_epoch=max(1, COUNT // 5)
    ),
    sink=ts.sinks.PostgreSQL(POSTGRESQL, ORDERS, create=False),
    dead_letters=ts.sinks.Files(WORK / "refused-orders", format="json"),
    checkpoint=ts.Checkpoint(WORK / "checked-orders", interval="1s"),
)
