package memory

import "cmp"

// IntTable shows a table to the tests.
type IntTable struct{ t table[int, int] }

func NewIntTable() IntTable { return IntTable{newTable[int, int](cmp.Compare[int])} }

func (i IntTable) Put(k, v int) IntTable { return IntTable{i.t.put(k, v)} }
func (i IntTable) Del(k int) IntTable    { return IntTable{i.t.del(k)} }

func (i IntTable) Keys(low int) (keys []int) {
	for k := range i.t.from(low) {
		keys = append(keys, k)
	}
	return keys
}

func (i IntTable) Balanced() bool { return balanced(i.t.root) }

func balanced(n *node[int, int]) bool {
	if n == nil {
		return true
	}
	l, r := n.left.count(), n.right.count()
	fair := l+r < 2 || l <= delta*r && r <= delta*l
	return fair && n.size == l+r+1 && balanced(n.left) && balanced(n.right)
}
