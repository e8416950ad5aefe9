-- Takes over what the group has read and not acknowledged, in order, from whoever read it.
-- KEYS: lease, stream. ARGV: group, reader, the lease's value, cursor, count.
-- Answer: {state, next cursor, entries, ids of entries that were deleted meanwhile}.
if redis.call('GET', KEYS[1]) ~= ARGV[3] then
  return {'lost', '0-0', {}, {}}
end
local got = redis.pcall('XAUTOCLAIM', KEYS[2], ARGV[1], ARGV[2], 0, ARGV[4], 'COUNT', ARGV[5])
if got.err then
  return {got.err, '0-0', {}, {}}
end
return {'ok', got[1], got[2], got[3]}
