package machine

// The entities' table has a name that only the machine's owner knows, so these statements are put together here and do
// not stand in a .sql file. No value is ever written into them.

// History rows are inserted in the transaction of the move; the row's UPDATE has serialised the entity before, so ids
// of one entity grow in the order of its moves.
const insertTransition = `INSERT INTO machine_transition
(machine, entity_id, move, from_state, to_state, cause, cause_key, actor, version, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const selectHistory = `SELECT move, from_state, to_state, cause, cause_key, actor, version, at
FROM machine_transition WHERE machine = ? AND entity_id = ? ORDER BY id`

// Reads without a lock: the UPDATE below checks what was read.
func (m Machine) selectRow() string {
	return "SELECT " + m.State + ", " + m.Version + " FROM " + m.Table + " WHERE " + m.ID + " = ?"
}

// The version changes with every move, so "one row affected" means the same on a database that counts matched rows and
// on one that counts changed rows.
func (m Machine) updateRow() string {
	return "UPDATE " + m.Table + " SET " + m.State + " = ?, " + m.Version + " = " + m.Version + " + 1 WHERE " +
		m.ID + " = ? AND " + m.State + " = ? AND " + m.Version + " = ?"
}
