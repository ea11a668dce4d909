-- A new incarnation of the server that has lost nothing goes on with the
-- namespaces of the one before.
--
-- ARGV[7]  the incarnation that was, ARGV[8] the one that is
--
-- Returns 'ok' in any case: whoever is first decides, and the step that is
-- repeated after this one finds out.
if redis.call('HGET', STATE, 'witness') == ARGV[7] and
  string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') == ARGV[8] then
  redis.call('HSET', STATE, 'witness', ARGV[8])
end
return {'ok', '', 0}
