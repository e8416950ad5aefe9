-- Gives leases back, each only if it still stands; with a last argument that is not "", the instance leaves the members too.
-- KEYS: members, then leases. ARGV: the values of the leases in turn, then the leaving instance or "".
for i = 2, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[i - 1] then
    redis.call('DEL', KEYS[i])
  end
end
if ARGV[#KEYS] ~= '' then
  redis.call('ZREM', KEYS[1], ARGV[#KEYS])
end
return 1
