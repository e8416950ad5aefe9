"""Orders in a database of their own, and events that tell of them, written with plain SQL. No library of Convergo takes part:
`convergo relay` sends what stands in the table outbox_event.

    pip install -r requirements.txt
    python shop.py postgresql://user:password@host/shop A 3
    python shop.py mysql://user:password@host:3306/shop A 3

places, pays and packs the orders A-1/Zürich to A-3/Zürich. A second run is refused: those orders were told already.
"""

import hashlib
import json
import sys
import time
import urllib.parse
import uuid

import psycopg
import pymysql


def add_event(cursor, *, topic, type, aggregate_type, aggregate_id, payload,
              version=0, key=None, headers=None, deliver_at=0, once=False):
    """Writes one event in the transaction that the cursor belongs to.

    A key that was used is an IntegrityError: roll back. With once it is passed over, for facts that several paths tell.
    """
    key = key or f"{type}:{aggregate_id}:v{version}"
    aggregate = hashlib.sha256(f"{aggregate_type}/{aggregate_id}".encode()).digest()
    passed_over = ""
    if once and isinstance(cursor, psycopg.Cursor):
        passed_over = "ON CONFLICT (key_digest) DO NOTHING"
    elif once:  # not INSERT IGNORE, which lets wrong values pass too
        passed_over = "ON DUPLICATE KEY UPDATE key_digest = key_digest"
    cursor.execute(
        f"""INSERT INTO outbox_event (message_id, event_key, key_digest, topic, type,
                aggregate_type, aggregate_id, aggregate_digest, aggregate_version,
                lane, payload, headers, deliver_at, created_at)
            VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) {passed_over}""",
        (str(uuid.uuid4()), key, hashlib.sha256(key.encode()).digest(), topic, type,
         aggregate_type, aggregate_id, aggregate, version,
         aggregate[0] % 64, payload, json.dumps(headers or {}), deliver_at,
         time.time_ns() // 1000))


def connect(url):
    """Opens a connection that begins transactions by itself, and none that it commits by itself."""
    at = urllib.parse.urlsplit(url)
    if at.scheme != "mysql":
        return psycopg.connect(url)
    return pymysql.connect(host=at.hostname, port=at.port or 3306, user=urllib.parse.unquote(at.username),
                           password=urllib.parse.unquote(at.password or ""), database=at.path[1:], charset="utf8mb4")


def transaction(db, work):
    """Runs work with a cursor and commits; rolls back when it fails; runs it again when the database ended a deadlock by it."""
    for left in reversed(range(5)):
        try:
            with db.cursor() as cursor:
                work(cursor)
            db.commit()
            return
        except BaseException as failure:
            db.rollback()
            code = getattr(failure, "sqlstate", None) or failure.args[:1]
            if not left or code not in ("40P01", "40001", (1213,), (1205,)):
                raise


def order_event(cursor, type, no, version, payload):
    add_event(cursor, topic="shop", type=type, aggregate_type="order", aggregate_id=no, version=version, payload=payload,
              headers={"Content-Type": "application/json", "Shop": "Köln \"Süd\" 北京"})


def document(no, **fields):
    return json.dumps({"no": no, **fields}, ensure_ascii=False, separators=(",", ":")).encode()


class Lost(Exception):
    """The parcel was lost: nothing of the transaction may remain."""


def place(cursor, no):
    order_event(cursor, "OrderPlaced", no, 1, document(no, total=1200))  # refused when it was told before
    cursor.execute("INSERT INTO shop_order (no, total, state) VALUES (%s, 1200, 'PLACED')", (no,))


def pay(cursor, no):
    cursor.execute("UPDATE shop_order SET state = 'PAID' WHERE no = %s", (no,))  # the row's lock keeps the order's events in order
    order_event(cursor, "OrderPaid", no, 2, document(no, paid=1200))


def ship(cursor, no):
    cursor.execute("UPDATE shop_order SET state = 'SHIPPED' WHERE no = %s", (no,))
    order_event(cursor, "OrderShipped", no, 3, document(no, parcel=1))
    raise Lost


def pack(cursor, no):
    cursor.execute("UPDATE shop_order SET state = 'PACKED' WHERE no = %s", (no,))
    order_event(cursor, "OrderPacked", no, 3, bytes(range(256)))  # a payload is bytes


def run(url, prefix, count):
    db = connect(url)
    with db.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS shop_order "
                       "(no VARCHAR(100) PRIMARY KEY, total BIGINT NOT NULL, state VARCHAR(20) NOT NULL)")
    db.commit()
    transaction(db, lambda cursor: add_event(cursor, topic="shop", type="ShopOpened", aggregate_type="shop", aggregate_id=prefix,
                                             payload=document(prefix), once=True))
    for n in range(1, count + 1):
        no = f"{prefix}-{n}/Zürich"
        try:
            transaction(db, lambda cursor: place(cursor, no))
        except (psycopg.errors.UniqueViolation, pymysql.err.IntegrityError) as failure:
            sys.exit(f"order {no}: refused, it was told before: {failure}")
        transaction(db, lambda cursor: pay(cursor, no))
        try:
            transaction(db, lambda cursor: ship(cursor, no))
        except Lost:
            pass  # as if it had never been shipped, and nobody was told
        transaction(db, lambda cursor: pack(cursor, no))
    db.close()
    print(f"{count} orders placed, paid and packed")


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
