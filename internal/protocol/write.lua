-- write.lua: one command on one key, for eval.lua to run. It is no script by itself.
--
-- KEYS[1] key
-- ARGV[1] command   ARGV[2...] what follows the key
--
-- Returns what the command answers.

return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
