import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Collectors;

/**
 * Orders in a database of their own, and events that tell of them, written with plain SQL. No library of Convergo takes part:
 * `convergo relay` sends what stands in the table outbox_event.
 *
 * <pre>
 * mvn -q dependency:copy-dependencies -DoutputDirectory=lib
 * java -cp 'lib/*' Shop.java 'jdbc:postgresql://host/shop?user=U&amp;password=P' A 3
 * java -cp 'lib/*' Shop.java 'jdbc:mysql://host:3306/shop?user=U&amp;password=P' A 3
 * </pre>
 *
 * places, pays and packs the orders A-1/Z&uuml;rich to A-3/Z&uuml;rich. A second run is refused: those orders were told already.
 */
public final class Shop {
    /** An event; key may be null: type:aggregateId:vVersion. */
    record Event(String topic, String type, String aggregateType, String aggregateId, long version, String key, byte[] payload,
            Map<String, String> headers) {}

    /** The parcel was lost: nothing of the transaction may remain. */
    static final class Lost extends Exception {
        private static final long serialVersionUID = 1;
    }

    interface Work {
        void run(Connection db) throws Exception;
    }

    /**
     * Writes one event in the connection's transaction. A key that was used is an SQLException that isDuplicate: roll back. With
     * once it is passed over, for facts that several paths tell.
     */
    static void addEvent(Connection db, Event e, boolean once) throws Exception {
        String key = e.key != null ? e.key : e.type + ":" + e.aggregateId + ":v" + e.version;
        byte[] aggregate = sha256(e.aggregateType + "/" + e.aggregateId);
        String passedOver = !once ? ""
                : isPostgres(db) ? "ON CONFLICT (key_digest) DO NOTHING"
                : "ON DUPLICATE KEY UPDATE key_digest = key_digest"; // not INSERT IGNORE, which lets wrong values pass too
        try (PreparedStatement insert = db.prepareStatement("""
                INSERT INTO outbox_event (message_id, event_key, key_digest, topic, type,
                    aggregate_type, aggregate_id, aggregate_digest, aggregate_version,
                    lane, payload, headers, created_at)
                VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
                """ + passedOver)) {
            insert.setString(1, UUID.randomUUID().toString());
            insert.setString(2, key);
            insert.setBytes(3, sha256(key));
            insert.setString(4, e.topic);
            insert.setString(5, e.type);
            insert.setString(6, e.aggregateType);
            insert.setString(7, e.aggregateId);
            insert.setBytes(8, aggregate);
            insert.setLong(9, e.version);
            insert.setInt(10, Byte.toUnsignedInt(aggregate[0]) % 64); // a byte of Java has a sign
            insert.setBytes(11, e.payload);
            insert.setString(12, json(e.headers));
            insert.setLong(13, ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()));
            insert.executeUpdate();
        }
    }

    /** Runs work and commits; rolls back when it fails; runs it again when the database ended a deadlock by it. */
    static void transaction(Connection db, Work work) throws Exception {
        for (int left = 4; ; left--) {
            try {
                work.run(db);
                db.commit();
                return;
            } catch (Throwable failure) {
                db.rollback();
                boolean again = failure instanceof SQLException s
                        && (Set.of("40P01", "40001").contains(String.valueOf(s.getSQLState())) || Set.of(1213, 1205).contains(s.getErrorCode()));
                if (!again || left == 0) {
                    throw failure;
                }
            }
        }
    }

    static byte[] sha256(String text) throws Exception {
        return MessageDigest.getInstance("SHA-256").digest(utf8(text));
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** A JSON object of texts. */
    static String json(Map<String, String> texts) {
        return texts.entrySet().stream().map(e -> quoted(e.getKey()) + ":" + quoted(e.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
    }

    static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"'; // headers have no control characters
    }

    static boolean isPostgres(Connection db) throws SQLException {
        return db.getMetaData().getURL().startsWith("jdbc:postgresql:");
    }

    static boolean isDuplicate(SQLException e) {
        return "23505".equals(e.getSQLState()) || e.getErrorCode() == 1062;
    }

    static void orderEvent(Connection db, String type, String no, long version, byte[] payload) throws Exception {
        Map<String, String> headers = Map.of("Content-Type", "application/json", "Shop", "K\u00f6ln \"S\u00fcd\" \u5317\u4eac");
        addEvent(db, new Event("shop", type, "order", no, version, null, payload, headers), false);
    }

    static void change(Connection db, String sql, String no) throws SQLException {
        try (PreparedStatement statement = db.prepareStatement(sql)) {
            statement.setString(1, no);
            statement.executeUpdate();
        }
    }

    static void place(Connection db, String no) throws Exception {
        orderEvent(db, "OrderPlaced", no, 1, utf8("{\"no\":" + quoted(no) + ",\"total\":1200}")); // refused when it was told before
        change(db, "INSERT INTO shop_order (no, total, state) VALUES (?, 1200, 'PLACED')", no);
    }

    static void pay(Connection db, String no) throws Exception {
        change(db, "UPDATE shop_order SET state = 'PAID' WHERE no = ?", no); // the row's lock keeps the order's events in order
        orderEvent(db, "OrderPaid", no, 2, utf8("{\"no\":" + quoted(no) + ",\"paid\":1200}"));
    }

    static void ship(Connection db, String no) throws Exception {
        change(db, "UPDATE shop_order SET state = 'SHIPPED' WHERE no = ?", no);
        orderEvent(db, "OrderShipped", no, 3, utf8("{\"no\":" + quoted(no) + ",\"parcel\":1}"));
        throw new Lost();
    }

    static void pack(Connection db, String no) throws Exception {
        change(db, "UPDATE shop_order SET state = 'PACKED' WHERE no = ?", no);
        byte[] payload = new byte[256]; // a payload is bytes
        for (int i = 0; i < payload.length; i++) {
            payload[i] = (byte) i;
        }
        orderEvent(db, "OrderPacked", no, 3, payload);
    }

    public static void main(String[] args) throws Exception {
        String prefix = args[1];
        int count = Integer.parseInt(args[2]);
        try (Connection db = DriverManager.getConnection(args[0])) {
            db.setAutoCommit(false);
            try (Statement statement = db.createStatement()) {
                statement.execute("CREATE TABLE IF NOT EXISTS shop_order "
                        + "(no VARCHAR(100) PRIMARY KEY, total BIGINT NOT NULL, state VARCHAR(20) NOT NULL)");
            }
            db.commit();
            Event opened = new Event("shop", "ShopOpened", "shop", prefix, 0, null, utf8("{\"no\":" + quoted(prefix) + "}"), Map.of());
            transaction(db, tx -> addEvent(tx, opened, true));
            for (int n = 1; n <= count; n++) {
                String no = prefix + "-" + n + "/Z\u00fcrich";
                try {
                    transaction(db, tx -> place(tx, no));
                } catch (SQLException e) {
                    if (!isDuplicate(e)) {
                        throw e;
                    }
                    System.err.println("order " + no + ": refused, it was told before: " + e.getMessage());
                    System.exit(1);
                }
                transaction(db, tx -> pay(tx, no));
                try {
                    transaction(db, tx -> ship(tx, no));
                } catch (Lost lost) {
                    // as if it had never been shipped, and nobody was told
                }
                transaction(db, tx -> pack(tx, no));
            }
        }
        System.out.println(count + " orders placed, paid and packed");
    }
}
