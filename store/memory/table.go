package memory

import "iter"

// table is an immutable ordered map: put and del return a new table that shares with the old one all that did not
// change. That is what makes a transaction here: it works on its own tables, a commit publishes them, a savepoint is a
// copy of a few pointers, and a reader keeps what it has. Every operation takes logarithmic time.
//
// It is a size-balanced tree (Adams, "Efficient sets: a balancing act", 1993).
type table[K, V any] struct {
	root    *node[K, V]
	compare func(a, b K) int
}

type node[K, V any] struct {
	key         K
	value       V
	size        int
	left, right *node[K, V]
}

func newTable[K, V any](compare func(a, b K) int) table[K, V] { return table[K, V]{compare: compare} }

func (t table[K, V]) len() int { return t.root.count() }

func (t table[K, V]) has(k K) bool { return t.find(k) != nil }

func (t table[K, V]) get(k K) (value V, ok bool) {
	if n := t.find(k); n != nil {
		return n.value, true
	}
	return value, false
}

func (t table[K, V]) find(k K) *node[K, V] {
	n := t.root
	for n != nil {
		c := t.compare(k, n.key)
		if c == 0 {
			return n
		}
		if c < 0 {
			n = n.left
		} else {
			n = n.right
		}
	}
	return nil
}

func (t table[K, V]) put(k K, v V) table[K, V] {
	t.root = t.insert(t.root, k, v)
	return t
}

func (t table[K, V]) del(k K) table[K, V] {
	if t.has(k) {
		t.root = t.remove(t.root, k)
	}
	return t
}

// all yields the entries in order.
func (t table[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { t.root.walk(func(K) bool { return true }, yield) }
}

// from yields the entries whose key is at least low, in order.
func (t table[K, V]) from(low K) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		t.root.walk(func(k K) bool { return t.compare(k, low) >= 0 }, yield)
	}
}

func (t table[K, V]) insert(n *node[K, V], k K, v V) *node[K, V] {
	if n == nil {
		return &node[K, V]{key: k, value: v, size: 1}
	}
	switch c := t.compare(k, n.key); {
	case c < 0:
		return balance(n.key, n.value, t.insert(n.left, k, v), n.right)
	case c > 0:
		return balance(n.key, n.value, n.left, t.insert(n.right, k, v))
	default:
		return join(k, v, n.left, n.right)
	}
}

func (t table[K, V]) remove(n *node[K, V], k K) *node[K, V] {
	c := t.compare(k, n.key)
	switch {
	case c < 0:
		return balance(n.key, n.value, t.remove(n.left, k), n.right)
	case c > 0:
		return balance(n.key, n.value, n.left, t.remove(n.right, k))
	case n.left == nil:
		return n.right
	case n.right == nil:
		return n.left
	}
	least := n.right
	for least.left != nil {
		least = least.left
	}
	return balance(least.key, least.value, n.left, t.remove(n.right, least.key))
}

func (n *node[K, V]) count() int {
	if n == nil {
		return 0
	}
	return n.size
}

// walk yields the nodes that reached says are not below the lower bound; it tells whether to go on.
func (n *node[K, V]) walk(reached func(K) bool, yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	if !reached(n.key) {
		return n.right.walk(reached, yield)
	}
	return n.left.walk(reached, yield) && yield(n.key, n.value) && n.right.walk(reached, yield)
}

func join[K, V any](k K, v V, left, right *node[K, V]) *node[K, V] {
	return &node[K, V]{key: k, value: v, size: left.count() + right.count() + 1, left: left, right: right}
}

// A subtree may be at most delta times its sibling; ratio decides between a single and a double rotation. 3 and 2 is a
// proven pair (Hirai and Yamamoto, "Balancing weight-balanced trees", 2011).
const (
	delta = 3
	ratio = 2
)

func balance[K, V any](k K, v V, left, right *node[K, V]) *node[K, V] {
	l, r := left.count(), right.count()
	switch {
	case l+r < 2:
	case r > delta*l:
		if right.left.count() < ratio*right.right.count() {
			return join(right.key, right.value, join(k, v, left, right.left), right.right)
		}
		m := right.left
		return join(m.key, m.value, join(k, v, left, m.left), join(right.key, right.value, m.right, right.right))
	case l > delta*r:
		if left.right.count() < ratio*left.left.count() {
			return join(left.key, left.value, left.left, join(k, v, left.right, right))
		}
		m := left.right
		return join(m.key, m.value, join(left.key, left.value, left.left, m.left), join(k, v, m.right, right))
	}
	return join(k, v, left, right)
}
