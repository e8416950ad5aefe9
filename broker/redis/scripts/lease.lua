-- Renews an instance's leases on the partitions of one topic for one consumer and takes free ones up to its fair share.
-- KEYS: members, tokens, then one lease per partition.
-- ARGV: instance, term in ms, then per partition the value that the instance believes to hold, or "".
-- Answer: fair share, then per partition the value now held, or "".
local instance, term = ARGV[1], tonumber(ARGV[2])
local partitions = #KEYS - 2
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + term, instance)
redis.call('PEXPIRE', KEYS[1], 2 * term)
local share = math.ceil(partitions / redis.call('ZCARD', KEYS[1]))

local answer, held = {share}, 0
for p = 1, partitions do
  local value = redis.call('GET', KEYS[p + 2])
  answer[p + 1] = ''
  if value and value == ARGV[p + 2] then
    redis.call('PEXPIRE', KEYS[p + 2], term)
    answer[p + 1] = value
    held = held + 1
  end
end
for p = 1, partitions do
  if held >= share then
    break
  end
  local value = redis.call('GET', KEYS[p + 2])
  -- One with our name that we do not know of: the answer that gave it to us was lost.
  local ours = value and string.sub(value, 1, #instance + 1) == instance .. '#' and answer[p + 1] == ''
  if not value or ours then
    value = instance .. '#' .. redis.call('INCR', KEYS[2])
    redis.call('SET', KEYS[p + 2], value, 'PX', term)
    answer[p + 1] = value
    held = held + 1
  end
end
return answer
