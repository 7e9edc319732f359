"""An order in PostgreSQL and its event in Kafka, decided together: there is never one without the other.

    tallystick run examples/order_and_event.py

The classic that goes wrong otherwise: the row is written, the process dies, and the event that others act on is never
sent; or the event is sent and the row rolled back. Here both belong to one epoch. It is decided once, in the job's
journal, and then committed in both, however often somebody has to try.
"""

import os
from pathlib import Path

import tallystick as ts

KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
POSTGRESQL = os.environ.get("POSTGRESQL", "postgresql://postgres@127.0.0.1:5432/postgres")
EVENTS = os.environ.get("EVENTS", "order-events")
ORDERS = os.environ.get("ORDERS", "orders")
WORK = Path(os.environ.get("WORK", "work"))
COUNT = int(os.environ.get("COUNT", "10000"))


def order(number: int) -> dict[str, object]:
    """Order N, always the same: a stand-in for whatever orders come from."""
    return {"id": number, "customer": f"customer-{number % 97}", "cents": 100 + number * 31 % 9900}


job = ts.Job(
    "orders",
    source=ts.sources.Collection(
        order, length=COUNT, schema="id long, customer string, cents long", per_epoch=max(1, COUNT // 5)
    ),
    sink=[
        # The table is made if it is missing, with the key as its primary key.
        ts.Output(ts.sinks.PostgreSQL(POSTGRESQL, ORDERS, mode="upsert", key=["id"]), "orders"),
        ts.Output(
            ts.sinks.Kafka(KAFKA, EVENTS),
            "events",
            select=["customer AS key", "to_json(struct('ordered' AS event, id, cents)) AS value"],
        ),
    ],
    checkpoint=ts.Checkpoint(WORK / "orders", interval="1s"),
    restart=ts.FixedDelay(attempts=10, delay="5s"),
)
