-- Reads new entries of partitions whose leases still stand.
-- KEYS: lease and stream in turn. ARGV: group, reader, most, then the leases' values.
-- Answer: per partition {state, entries}; fewer when most is reached.
local group, reader, left = ARGV[1], ARGV[2], tonumber(ARGV[3])
local answer = {}
for i = 1, #KEYS / 2 do
  if left <= 0 then
    break
  end
  if redis.call('GET', KEYS[2 * i - 1]) ~= ARGV[i + 3] then
    answer[i] = {'lost', {}}
  else
    local got = redis.pcall('XREADGROUP', 'GROUP', group, reader, 'COUNT', left, 'STREAMS', KEYS[2 * i], '>')
    if got and got.err then
      answer[i] = {got.err, {}}
    elseif got then
      answer[i] = {'ok', got[1][2]}
      left = left - #got[1][2]
    else
      answer[i] = {'ok', {}}
    end
  end
end
return answer
