package main

import (
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/convergo/convergo/drill"
	"github.com/convergo/convergo/drill/check"
)

// fingerprintOf is the names, sizes and contents of all files below a folder.
func fingerprintOf(t *testing.T, dir string) string {
	t.Helper()
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(sum, "%s %d\n", path, len(text))
		sum.Write(text)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func TestWrongFlagsOfServeAreRefusedAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	for args, says := range map[string][]string{
		"--services=":                                 {"--services"},
		"--services=order,orders":                     {"--services", `"orders"`, "payment"},
		"--services=order,payment,order":              {"--services", `"order"`, "twice"},
		"--fault-rate=0.95":                           {"--fault-rate", "0.95", "0.9"},
		"--fault-rate=-0.1":                           {"--fault-rate"},
		"--fault-rate=NaN":                            {"--fault-rate"},
		"--rate=-1":                                   {"--rate"},
		"--burst=-1":                                  {"--burst"},
		"--payment-window=0s":                         {"--payment-window", "not positive"},
		"--unknown-grace=-1s":                         {"--unknown-grace"},
		"--transit=0s":                                {"--transit"},
		"--track-every=0s":                            {"--track-every"},
		"--lease=0s":                                  {"--lease"},
		"--call-lease=0s":                             {"--call-lease"},
		"--retry-base=0s":                             {"--retry-base"},
		"--retry-cap=0s":                              {"--retry-cap"},
		"--retry-base=2h":                             {"--retry-cap", "--retry-base"},
		"--keep-sent=0s":                              {"--keep-sent"},
		"--keep-inbox=0s":                             {"--keep-inbox"},
		"--keep-broker=0s":                            {"--keep-broker"},
		"--keep-requests=0s":                          {"--keep-requests"},
		"--stop-grace=0s":                             {"--stop-grace"},
		"--keep-inbox=24h":                            {"--keep-inbox", "--keep-broker"},
		"--crash-at=relay.claimed:0":                  {"--crash-at"},
		"--crash-at=relay.claimed:often":              {"--crash-at"},
		"--crash-at=:3":                               {"--crash-at"},
		"--addr=nowhere.invalid:1":                    {"--addr"},
		"--addr=127.0.0.1":                            {"--addr"},
		"--addr=127.0.0.1:99999":                      {"--addr"},
		"--services=order --payment-window=-1ns":      {"--payment-window"},
		"--services=order --keep-inbox=168h --rate=0": {"--keep-inbox"},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		code := 2
		if strings.Contains(args, "nowhere.invalid") { // can be read, and is nowhere
			code = 1
		}
		refused(t, code, says, append([]string{"serve", "--data", dir}, strings.Fields(args)...)...)
		if _, err := os.Stat(dir); err == nil && !strings.HasPrefix(args, "--addr") {
			t.Errorf("%s: the data folder was made", args)
		}
	}
}

func TestWrongUseIsExitCode2(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing.csv")
	for args, says := range map[string][]string{
		"serves":                        {"serves"},
		"serve --colour red":            {"--colour"},
		"serve --log loud":              {"--log", "debug"},
		"serve --payment-window soon":   {"--payment-window"},
		"serve --lease 99999999999999h": {"--lease"},
		"serve --rate fast":             {"--rate"},
		"serve --fault-seed -1":         {"--fault-seed"},
		"serve extra":                   {"extra"},
		"demo --orders " + missing:      {"missing.csv"},
		"demo --seed -1":                {"--seed"},
		"check --settle x":              {"--settle"},
	} {
		refused(t, 2, append(says, "--help"), strings.Fields(args)...)
	}
	for _, args := range [][]string{nil, {"--help"}, {"serve", "--help"}, {"demo", "--help"}, {"check", "--help"}, {"version"}} {
		if r := runProgram(t.Context(), args...); r.code != 0 || r.out.String() == "" || r.err.String() != "" {
			t.Errorf("%v: code %d, out %q, err %q", args, r.code, r.out.String(), r.err.String())
		}
	}
}

func TestWrongFlagsOfDemoAreRefusedAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "diary.txt"), []byte("dear diary"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := fingerprintOf(t, full)
	for args, says := range map[string][]string{
		"--count=0":          {"--count", "between"},
		"--count=1000001":    {"--count"},
		"--buyers=0":         {"--buyers"},
		"--buyers=1001":      {"--buyers"},
		"--kills=-1":         {"--kills"},
		"--kills=1001":       {"--kills"},
		"--limit=-1":         {"--limit"},
		"--limit=5":          {"--limit", "--orders", "--count"},
		"--faults=0.6":       {"--faults"},
		"--faults=-0.1":      {"--faults"},
		"--faults=NaN":       {"--faults"},
		"--timeout=0s":       {"--timeout"},
		"--keep=" + full:     {"--keep", "not empty"},
		"--keep=/dev/null":   {"--keep"},
		"--keep=/dev/null/x": {"--keep"},
	} {
		refused(t, 1, says, "demo", args)
	}
	if fingerprintOf(t, full) != before {
		t.Error("the folder that was not empty has changed")
	}
}

func TestBrokenOrderFilesNameTheLineAndTheColumn(t *testing.T) {
	t.Parallel()
	const header = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country\n"
	const good = "536365,85123A,LANTERN,6,2010-12-01 08:26:00,2.55,17850.0,United Kingdom\n"
	for text, says := range map[string][]string{
		"":                        {"line 1", "empty"},
		"a,b\n":                   {"line 1, column 1", "InvoiceNo"},
		header:                    {"line 2", "no rows"},
		header + good + "1,2,3\n": {"line 3", "column"},
		header + strings.Replace(good, ",6,", ",six,", 1):                                         {"line 2, column Quantity"},
		header + strings.Replace(good, "2010-12-01", "yesterday", 1):                              {"line 2, column InvoiceDate"},
		header + good + strings.Replace(good, "2.55", "2,5", 1):                                   {"line 3"},
		header + strings.Replace(good, "2.55", "much", 1):                                         {"line 2, column UnitPrice"},
		header + strings.Replace(good, "LANTERN", "\"LANTERN", 1):                                 {"line 2"},
		header + good + strings.Replace(good, "LANTERN", "L\xff\xfeN", 1):                         {"line 3, column Description", "UTF-8"},
		header + strings.Replace(good, ",6,", ",99999999999999999999,", 1):                        {"line 2, column Quantity"},
		header + strings.Replace(good, "LANTERN", strings.Repeat("L", 2_000), 1):                  {"line 2, column Description"},
		header + strings.Replace(strings.Replace(good, "536365", "C536365", 1), ",6,", ",-6,", 1): {"no row of the file is an order"},
	} {
		file, keep := filepath.Join(t.TempDir(), "orders.csv"), filepath.Join(t.TempDir(), "kept")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, 1, append(says, "orders.csv"), "demo", "--orders", file, "--keep", keep)
		if _, err := os.Stat(keep); err == nil {
			t.Errorf("%q: the folder for the data was made", text)
		}
	}
}

func TestAFolderOfSomethingElseIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "order.db"), []byte("somebody's orders"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := fingerprintOf(t, dir)
	refused(t, 1, []string{"not made by convergo", "--data", dir}, "serve", "--data", dir, "--addr", "127.0.0.1:0")
	if fingerprintOf(t, dir) != before {
		t.Error("it has changed")
	}
	file := filepath.Join(dir, "order.db")
	refused(t, 1, []string{"data folder", file}, "serve", "--data", file, "--addr", "127.0.0.1:0")
	refused(t, 1, []string{"data folder"}, "serve", "--data", filepath.Join(file, "x"), "--addr", "127.0.0.1:0")
}

// usedFolder is a data folder on which a platform ran and was stopped.
func usedFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	p := startPlatform(t, dir, quickly()...)
	p.stock("CUP", 500, 10)
	p.end(0)
	return dir
}

func TestAFolderOfANewerVersionIsRefusedAndLeftAsItIs(t *testing.T) {
	t.Parallel()
	dir := usedFolder(t)
	for _, c := range []struct{ file, table string }{
		{"order.db", "goose_order"}, {"ledger.db", "goose_trade"}, {"risk.db", "goose_engine"}, {"world.db", "goose_world"},
	} {
		t.Run(c.file+" "+c.table, func(t *testing.T) {
			path := filepath.Join(dir, c.file)
			change(t, path, "INSERT INTO "+c.table+" (version_id, is_applied) VALUES (900, 1)")
			before := fingerprintOfDatabases(t, dir)
			says := []string{strings.TrimSuffix(c.file, ".db"), "newer version", "use that version"}
			refused(t, 1, says, "serve", "--data", dir, "--addr", "127.0.0.1:0", "--log", "error")
			if fingerprintOfDatabases(t, dir) != before {
				t.Error("a database has changed")
			}
			change(t, path, "DELETE FROM "+c.table+" WHERE version_id = 900")
		})
	}
	startPlatform(t, dir).end(0) // all is as it was
}

func TestADatabaseThatIsLostOrNotItsServicesIsRefused(t *testing.T) {
	t.Parallel()
	dir := usedFolder(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	move := func(from, to string) {
		if err := os.Rename(file(from), file(to)); err != nil {
			t.Fatal(err)
		}
	}
	serve := []string{"serve", "--data", dir, "--addr", "127.0.0.1:0", "--log", "error"}
	for _, name := range []string{"order.db", "ledger.db", "world.db"} {
		move(name, "away")
		refused(t, 1, []string{file(name), "not there", "restore", "DATABASES"}, serve...)
		if _, err := os.Stat(file(name)); err == nil {
			t.Errorf("%s was made anew", name)
		}
		write(t, file(name), "")
		refused(t, 1, []string{file(name), "is empty", "restore", "DATABASES"}, serve...)
		move("away", name)
	}
	move("order.db", "away")
	change(t, file("order.db"), "CREATE TABLE something (id INTEGER)")
	refused(t, 1, []string{file("order.db"), "has lost its tables", "restore"}, serve...)
	move("payment.db", "order.db")
	refused(t, 1, []string{file("order.db"), "is the database of payment, not of order"}, append(serve, "--services", "order")...)
	move("order.db", "payment.db")
	move("away", "order.db")
	startPlatform(t, dir).end(0) // all is as it was

	move("risk.db", "away")
	write(t, file("DATABASES"), strings.Replace(textOf(t, file("DATABASES")), "risk\n", "", 1))
	startPlatform(t, dir).end(0) // a person has decided to go on without it
}

// change changes a database that nobody has open, and leaves one file of it.
func change(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), statement)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func fingerprintOfDatabases(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	for _, name := range append(serviceNames(), "world") {
		for _, file := range []string{name + ".db", name + ".db-wal"} {
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			sum := sha256.Sum256(text)
			all = append(all, hex.EncodeToString(sum[:]))
		}
	}
	return strings.Join(all, " ")
}

func TestADamagedDatabaseIsNamed(t *testing.T) {
	t.Parallel()
	dir := usedFolder(t)
	for name, damage := range map[string]func(text []byte) []byte{
		"no database": func([]byte) []byte {
			return []byte("this is no database, and it is long enough to be one: " + strings.Repeat("x", 4096))
		},
		"a torn page": func(text []byte) []byte {
			torn := slices.Clone(text)
			copy(torn[100:], make([]byte, 2000))
			return torn
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "payment.db")
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			damaged := damage(whole)
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, 1, []string{"payment"}, "serve", "--data", dir, "--addr", "127.0.0.1:0", "--log", "error")
			if text, err := os.ReadFile(path); err != nil || string(text) != string(damaged) {
				t.Error("the damaged database was changed", err)
			}
			if err := os.WriteFile(path, whole, 0o600); err != nil {
				t.Fatal(err)
			}
		})
	}
	startPlatform(t, dir).end(0)
}

func TestDamagedSecretsAreNamedAndKept(t *testing.T) {
	t.Parallel()
	dir := usedFolder(t)
	path := filepath.Join(dir, secretsFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	for text, says := range map[string][]string{
		"":   {"secrets.json", "not valid"},
		"{":  {"secrets.json", "not valid", "backup"},
		"{}": {"secrets.json", "operator_key"},
		`{"operator_key":"a","session_secret":"b","channel_secret":"c"}`:                                             {"secret"},
		`{"operator_key":"op_1234567890123456","session_secret":"b12345678901234567890","channel_secret":"whsec_!"}`: {"channel_secret"},
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, 1, says, "serve", "--data", dir, "--addr", "127.0.0.1:0", "--log", "error")
		if now, err := os.ReadFile(path); err != nil || string(now) != text {
			t.Errorf("the damaged secrets were changed to %q, %v", now, err)
		}
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	startPlatform(t, dir).end(0)
}

func TestAPortThatIsTakenIsTold(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	refused(t, 1, []string{"listen", l.Addr().String(), "--addr"}, "serve", "--data", t.TempDir(), "--addr", l.Addr().String())
}

func TestTheSecondProcessOnAFolderIsToldWhoHoldsIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startPlatform(t, dir)
	text, err := exec.CommandContext(t.Context(), programFile(t), "serve", "--data", dir, "--addr", "127.0.0.1:0").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(text), "process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("%v: %s", err, text)
	}
	p.operator("GET", "/ops/order/backlog", "", nil, nil) // the first one is none the worse for it
	p.end(0)
	startPlatform(t, dir).end(0)
}

// A start that fails must not look like a clean stop: what a power cut may have cost is still to be made good.
func TestAFailedStartKeepsTheSignOfAnUncleanStop(t *testing.T) {
	t.Parallel()
	d := newCrashDrill(t, programFile(t))
	if err := d.child().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.child().Kill(); err != nil {
		t.Fatal(err)
	}
	sign := filepath.Join(d.dir, aliveFile)
	before, err := os.Stat(sign)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	refused(t, 1, []string{"listen"}, "serve", "--data", d.dir, "--addr", l.Addr().String())
	path := filepath.Join(d.dir, "risk.db")
	change(t, path, "INSERT INTO goose_risk (version_id, is_applied) VALUES (900, 1)")
	refused(t, 1, []string{"newer"}, "serve", "--data", d.dir, "--addr", "127.0.0.1:0", "--log", "error")
	change(t, path, "DELETE FROM goose_risk WHERE version_id = 900")
	if after, err := os.Stat(sign); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("the sign of life is %v, %v, it was left at %v", after, err, before.ModTime())
	}
}

func TestTheVerdictIsBrokenWhenAnythingIs(t *testing.T) {
	for name, change := range map[string]func(*drill.Report){
		"an equation": func(r *drill.Report) { r.Equations[0].Broken = 1 },
		"no equation": func(r *drill.Report) { r.Equations = nil },
		"a reason":    func(r *drill.Report) { r.Reasons = []string{"an order is lost"} },
	} {
		r := soundReport()
		change(r)
		if r.Decide(); r.Verdict != drill.Broken || len(r.Reasons) == 0 {
			t.Errorf("%s: %s for %v", name, r.Verdict, r.Reasons)
		}
	}
	r := soundReport()
	if r.Decide(); r.Verdict != drill.Converged || len(r.Reasons) > 0 {
		t.Errorf("%s for %v", r.Verdict, r.Reasons)
	}
}

func soundReport() *drill.Report {
	return &drill.Report{Equations: []check.Equation{{Name: "all is well", Checked: 3}, {Name: "nothing to check"}}}
}

func TestProcessesThatSpeakToEachOtherNeedOneSetOfSecrets(t *testing.T) {
	t.Parallel()
	refused(t, 1, []string{"--secrets", "convergo secrets --data"}, "serve", "--data", t.TempDir(), "--secrets", filepath.Join(t.TempDir(), "none"), "--addr", "127.0.0.1:0")
	refused(t, 2, []string{"--secrets", "convergo secrets --data"}, "serve", "--data", t.TempDir(), "--services", "order", "--peers", "risk=http://127.0.0.1:1")
	refused(t, 2, []string{"--public-url"}, "serve", "--data", t.TempDir(), "--public-url", "shop.example")
}

func TestAnAddressThatStandsForAllIsNotGivenToCustomers(t *testing.T) {
	for addr, want := range map[string]string{
		":8080": "http://127.0.0.1:8080", "0.0.0.0:80": "http://127.0.0.1:80", "[::]:81": "http://127.0.0.1:81", "10.1.2.3:80": "http://10.1.2.3:80", "shop:80": "http://shop:80",
	} {
		if got := (serveCommand{Addr: addr}).url(); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
	if got := (serveCommand{Addr: ":80", PublicURL: "https://shop.example/"}).url(); got != "https://shop.example" {
		t.Error(got)
	}
}

func TestAMistakeNamesTheHelpOfItsSubcommand(t *testing.T) {
	for _, c := range []struct{ line, help string }{
		{"relay --nope", "(see convergo relay --help)"}, {"dead list --nope", "(see convergo dead list --help)"},
		{"dead", "(see convergo dead --help)"}, {"replay", "(see convergo replay --help)"}, {"relay --batch x", "(see convergo relay --help)"},
		{"nope", "(see convergo --help)"}, {"--nope", "(see convergo --help)"},
	} {
		refused(t, 2, []string{c.help}, strings.Fields(c.line)...)
	}
	refused(t, 2, []string{"nope", "(see convergo doctor --help)"}, "doctor", "--config", configOf(t, "nope: 1\n"))
}
