package machine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/store/sqlite"
)

var parcel = machine.Machine{
	Name: "parcel", Table: "parcel", ID: "parcel_no", State: "state", Version: "version",
	Moves: []machine.Move{
		{Name: "send", From: []machine.State{"PACKED"}, To: "SENT"},
		{Name: "lose", From: []machine.State{"SENT"}, To: "LOST"},
		{Name: "deliver", From: []machine.State{"SENT"}, To: "DELIVERED"},
	},
}

// A parcel is sent, and the carrier tells so twice.
func ExampleMachine_Apply() {
	ctx := context.Background()
	dir, _ := os.MkdirTemp("", "machine")
	defer os.RemoveAll(dir)
	db, err := sqlite.Open(ctx, filepath.Join(dir, "parcel.db"), sqlite.Options{Name: "parcel"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	err = db.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		for _, statement := range []string{
			"CREATE TABLE parcel (parcel_no VARCHAR(20) PRIMARY KEY, state VARCHAR(20) NOT NULL, version BIGINT NOT NULL)",
			"INSERT INTO parcel (parcel_no, state, version) VALUES ('P-1', 'PACKED', 1)",
		} {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		if err := parcel.Begin(ctx, tx, machine.Request{ID: "P-1", Actor: "warehouse", At: now}, "PACKED"); err != nil {
			return err
		}
		for _, r := range []machine.Request{
			{ID: "P-1", Move: "send", Cause: "scan-17"},
			{ID: "P-1", Move: "send", Cause: "scan-17"},
			{ID: "P-1", Move: "send", Cause: "scan-18"},
			{ID: "P-1", Move: "deliver", Cause: "scan-20"},
			{ID: "P-1", Move: "lose", Cause: "clerk"},
		} {
			r.At = now
			result, err := parcel.Apply(ctx, tx, r)
			if err != nil {
				return err
			}
			fmt.Printf("%s by %s: %s, it is %s by %s\n", r.Move, r.Cause, result.Answer, result.State, result.Cause)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// send by scan-17: applied, it is SENT by scan-17
	// send by scan-17: already, it is SENT by scan-17
	// send by scan-18: conflict, it is SENT by scan-17
	// deliver by scan-20: applied, it is DELIVERED by scan-20
	// lose by clerk: conflict, it is DELIVERED by scan-20
}

func ExampleMachine_Mermaid() {
	fmt.Print(parcel.Mermaid())
	// Output:
	// stateDiagram-v2
	//     [*] --> PACKED
	//     PACKED --> SENT: send
	//     SENT --> LOST: lose
	//     SENT --> DELIVERED: deliver
	//     LOST --> [*]
	//     DELIVERED --> [*]
}
