package bench

import (
	"testing"
	"time"
)

// BenchmarkIdle watches a platform that has nothing to do: what each of its nine services asks of its database in a
// second, relay, inbox, outgoing calls and sweeps together. The relay alone is held to 2 statements a second by
// TestAnIdleRelayRunsAtMostTwoStatementsASecond.
func BenchmarkIdle(b *testing.B) {
	p := startPlatform(b, buildProgram(b))
	warm, watched := 5*time.Second, 30*time.Second
	if testing.Short() {
		warm, watched = time.Second, 2*time.Second
	}
	var statements, commits, cpu float64
	for b.Loop() {
		<-time.After(warm)
		before, used, began := p.work(b), timeOf(p.pid), time.Now()
		<-time.After(watched)
		after, seconds := p.work(b), time.Since(began).Seconds()
		const services = 9
		statements = float64(after.Statements-before.Statements) / seconds / services
		commits = float64(after.Commits-before.Commits) / seconds / services
		cpu = (timeOf(p.pid) - used).Seconds() / seconds * 100
	}
	noTime(b)
	b.ReportMetric(statements, "statements/s/service")
	b.ReportMetric(commits, "commits/s/service")
	b.ReportMetric(cpu, "cpu-%")
}
