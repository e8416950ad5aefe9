package main

import (
	"context"
	"database/sql"
	"regexp"
	"strings"
)

// tableGrant is what an account needs on a database of MySQL or MariaDB.
const tableGrant = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES, TRIGGER"

// mayCreate tells whether the account may make tables in the database of a MySQL or MariaDB server, by what SHOW GRANTS says, and which
// GRANT would let it. When that cannot be seen, or there are roles, whose rights SHOW GRANTS leaves out, the account may.
func mayCreate(ctx context.Context, db *sql.DB, database string) (may bool, grant string) {
	var account string
	if err := db.QueryRowContext(ctx, "SELECT CURRENT_USER()").Scan(&account); err != nil {
		return true, ""
	}
	lines, err := grantsOf(ctx, db)
	if err != nil || allowsTables(lines, database) {
		return true, ""
	}
	at := strings.LastIndex(account, "@")
	quoted := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	name := strings.NewReplacer("`", "``", "_", `\_`, "%", `\%`).Replace(database)
	return false, tableGrant + " ON `" + name + "`.* TO " + quoted(account[:max(at, 0)]) + "@" + quoted(account[at+1:])
}

func grantsOf(ctx context.Context, db *sql.DB) (lines []string, err error) {
	rows, err := db.QueryContext(ctx, "SHOW GRANTS")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // only read
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, rows.Err()
}

// allowsTables reads what SHOW GRANTS answers.
func allowsTables(lines []string, database string) bool {
	privileges := regexp.MustCompile("^GRANT (.+?) ON (\\*|`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\")\\.\\* TO ")
	onObject := regexp.MustCompile("^GRANT .+ ON .+ TO ")
	for _, line := range lines {
		m := privileges.FindStringSubmatch(line)
		switch {
		case m == nil && strings.HasPrefix(line, "GRANT ") && !onObject.MatchString(line):
			return true // a role, and who knows what that may
		case m == nil || !covers(m[2], database):
			continue
		}
		for privilege := range strings.SplitSeq(m[1], ", ") {
			if privilege == "CREATE" || privilege == "ALL PRIVILEGES" || privilege == "ALL" {
				return true
			}
		}
	}
	return false
}

// covers tells whether a quoted name of a grant means the database: _ and % in it stand for others, unless a backslash is before them.
func covers(quoted, database string) bool {
	if quoted == "*" {
		return true
	}
	quote := quoted[:1]
	name := strings.ReplaceAll(quoted[1:len(quoted)-1], quote+quote, quote)
	pattern, escaped := "(?is)^", false
	for _, r := range name {
		switch {
		case escaped || r != '\\' && r != '_' && r != '%':
			pattern += regexp.QuoteMeta(string(r))
			escaped = false
		case r == '\\':
			escaped = true
		case r == '_':
			pattern += "."
		default:
			pattern += ".*"
		}
	}
	matched, err := regexp.MatchString(pattern+"$", database)
	return matched || err != nil
}
