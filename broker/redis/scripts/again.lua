-- Reads entries again that the group still has to acknowledge.
-- KEYS: lease, stream. ARGV: group, reader, the lease's value, then ids in order.
-- Answer: {state, entries, how often each was delivered, ids of entries that were deleted meanwhile}. What was acknowledged
-- meanwhile is in none of them.
if redis.call('GET', KEYS[1]) ~= ARGV[3] then
  return {'lost', {}, {}, {}}
end
local entries, counts, deleted = {}, {}, {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local pending = redis.pcall('XPENDING', KEYS[2], ARGV[1], id, id, 1)
  if pending.err then
    return {pending.err, {}, {}, {}}
  end
  if #pending > 0 then
    local got = redis.call('XCLAIM', KEYS[2], ARGV[1], ARGV[2], 0, id)
    if got[1] then
      entries[#entries + 1] = got[1]
      counts[#counts + 1] = pending[1][4] + 1 -- XCLAIM counts as a delivery
    else
      deleted[#deleted + 1] = id
    end
  end
end
return {'ok', entries, counts, deleted}
