-- Takes over what the group has read and not acknowledged, in order, from whoever read it.
-- KEYS: lease, stream. ARGV: group, reader, the lease's value, cursor, count.
-- Answer: {state, next cursor, entries, how often each was delivered, ids of entries that were deleted meanwhile}.
if redis.call('GET', KEYS[1]) ~= ARGV[3] then
  return {'lost', '0-0', {}, {}, {}}
end
local got = redis.pcall('XAUTOCLAIM', KEYS[2], ARGV[1], ARGV[2], 0, ARGV[4], 'COUNT', ARGV[5])
if got.err then
  return {got.err, '0-0', {}, {}, {}}
end
local entries, counts = got[2], {}
if #entries > 0 then
  local times = {}
  local pending = redis.call('XPENDING', KEYS[2], ARGV[1], entries[1][1], entries[#entries][1], ARGV[5])
  for i = 1, #pending do
    times[pending[i][1]] = pending[i][4]
  end
  for i = 1, #entries do
    counts[i] = times[entries[i][1]] or 0
  end
end
return {'ok', got[1], entries, counts, got[3]}
