// Package embedded is a broker that needs no other program: a NATS JetStream server inside the process, with one stream
// on disk. It listens on no port; only this process speaks to it, and its folder is
// locked while it is open: a second process is refused.
//
// Messages are those of package nats, in one partition: an event of topic T and type Y is stored under the subject ev.T.Y.0.
package embedded
