package bench

import (
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkDisk is the machine's own speed limit: a page of 4 KiB is written over and synced, as a commit does at least
// once. Durable commits one after another cannot be faster.
func BenchmarkDisk(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "page"))
	must(b, err)
	defer f.Close()
	page := make([]byte, 4096)
	_, err = f.WriteAt(page, 0)
	must(b, err)
	must(b, f.Sync())
	for b.Loop() {
		page[0]++
		_, err = f.WriteAt(page, 0)
		must(b, err)
		must(b, syncData(f))
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "syncs/s")
}
