// Package bench measures the engine and the platform on SQLite with every commit synced to disk. Its benchmarks and
// the counts that its tests hold are explained in docs/reference/benchmarks.md.
//
// A comparison runs its arms one after another, several times, in one process: the machine's mood touches both, and the
// median of the ratios is what to believe. Rates belong to the machine that they were measured on. Time never decides
// whether a test passes; counts do.
package bench
