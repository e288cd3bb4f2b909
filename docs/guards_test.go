package docs

// guard is one condition that keeps a promise. with replaces text, which is in the file once; then test goes red.
type guard struct {
	promise    string // S1 to S8, L1 to L8
	words      string
	text, with string
	test       string // its directory, a dot, its name
}

// guards are those outside of what the simulation changes (mutants and goMutants in
// lease/simulation_test.go), by file. Where two guards stand behind each other, an entry changes
// what only it keeps.
var guards = []struct {
	file string
	of   []guard
}{
	{"migrations/sql/00001_ledger.sql", []guard{
		{"S1", "a crash of the server does not empty the ledger", "CREATE TABLE fencedb.fences (", "CREATE UNLOGGED TABLE fencedb.fences (", "migrations.TestTheLedgerOutlivesACrash"},
		{"S2", "a token below the stored one is refused", "PERFORM fencedb.raise_stale(take.resource, token, stored.token);", "RETURN;", "migrations.TestEnterRefusesAnOlderToken"},
		{"S1", "the common case compares the token", "f.resource = enter.resource AND f.last_fencing_token = token AND f.lease_id", "f.resource = enter.resource AND f.lease_id", "migrations.TestEnterComparesTheTokenUnderTheSameLease"},
		{"S1", "the common case compares the lease id", "f.resource = enter.resource AND f.last_fencing_token = token AND f.lease_id = enter.lease_id", "f.resource = enter.resource AND f.last_fencing_token = token", "migrations.TestEnterRefusesTheSameTokenUnderAnotherLease"},
		{"S1", "the other cases compare the lease id", "f.resource = take.resource AND f.last_fencing_token = token AND f.lease_id = take.lease_id", "f.resource = take.resource AND f.last_fencing_token = token", "migrations.TestEnterRefusesTheSameTokenUnderAnotherLease"},
		{"S3", "a transaction of a lease that has entered keeps newcomers out", "f.last_fencing_token = token AND f.lease_id = enter.lease_id\n        FOR SHARE SKIP LOCKED", "f.last_fencing_token = token AND f.lease_id = enter.lease_id\n        FOR KEY SHARE SKIP LOCKED", "fencedb.TestANewcomerWaitsForAllTransactionsOfTheOldLease"},
		{"S3", "above READ COMMITTED a token that has not entered is refused", "ELSIF level IN ('repeatable read', 'serializable') AND", "ELSIF false AND", "fencedb.TestEnterSQLAsksForASealAboveReadCommitted"},
		{"S3", "who enters first behind a savepoint is refused", "    PERFORM fencedb.require_outermost(locker);\nEND\n", "END\n", "migrations.TestEnterRefusesAfterASavepoint"},
		{"S3", "who enters again behind a savepoint is refused", "IF locker <> xid::xid THEN", "IF false THEN", "migrations.TestEnterRefusesAfterASavepoint"},
		{"S3", "fences of several resources are taken in one order", `ORDER BY resources[p] COLLATE "C")`, "ORDER BY p)", "fencedb.TestFencesAreTakenInByteOrder"},
		{"S1", "a transaction has one grant for a resource", "IF (present ->> 'token')::bigint <> tokens[i] OR (present ->> 'lease')::uuid <> lease_ids[i] THEN", "IF false THEN", "migrations.TestOneTransactionEntersAResourceUnderOneGrant"},
		{"S2", "a token that no lease can follow is refused", "ELSIF token > 9007199254740991 AND", "ELSIF false AND", "migrations.TestEnterRefusesTokensThatNoLeaseCanFollow"},
		{"S2", "a token that nobody issued is refused", "ELSIF token IS NULL OR token <= 0 THEN", "ELSIF token IS NULL THEN", "migrations.TestEnterRefusesGrantsThatNobodyIssued"},
		{"S4", "what enter leaves for the guards is signed", "ELSIF left(signed, 64) = (SELECT fencedb.signature(k.key, substr(signed, 65)) FROM fencedb.signing_key k) THEN", "ELSE", "migrations.TestASettingForgedByHandOpensNothing"},
		{"S4", "a signature is of one transaction", "convert_to(pg_current_xact_id()::text || ' ' || body, 'UTF8')", "convert_to(body, 'UTF8')", "migrations.TestASettingForgedByHandOpensNothing"},
		{"S4", "who may read all data does not read the key", "ALTER TABLE fencedb.signing_key ENABLE ROW LEVEL SECURITY;", "", "migrations.TestWhoReadsAndWritesAllDataCannotSignAGrant"},
		{"S4", "only who is allowed enters", "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fencedb FROM PUBLIC;", "", "migrations.TestOnlyWhoIsAllowedEnters"},
		{"S4", "a function has a search_path of its own", "RETURNS bigint\n    LANGUAGE sql STABLE SECURITY DEFINER\n    SET search_path = pg_catalog, pg_temp\n", "RETURNS bigint\n    LANGUAGE sql STABLE SECURITY DEFINER\n", "migrations.TestEveryFunctionHasAFixedSearchPath"},
		{"S6", "an id of before a crash is not asked about", "IF epoch = pg_sequence_last_value('fencedb.server_epoch') THEN", "IF true THEN", "fencedb.TestACrashOfTheServerLeavesTheOutcomeUnknown"},
		{"S6", "a crash of the server ends its epoch", "CREATE UNLOGGED SEQUENCE fencedb.server_epoch;", "CREATE SEQUENCE fencedb.server_epoch;", "fencedb.TestACrashOfTheServerLeavesTheOutcomeUnknown"},
		{"S6", "sessions that come at once draw one epoch", "IF drawn IS NULL AND (mine OR try = 100) THEN", "IF drawn IS NULL THEN", "migrations.TestFirstTransactionsAtOnceDrawOneEpoch"},
		{"S6", "before COMMIT, the transaction is the one that entered", "\n       OR xid IS NOT NULL AND xid IS DISTINCT FROM pg_current_xact_id_if_assigned() THEN", " THEN", "fencedb.TestAStatementThatEntersOnceMoreIsNoticed"},
		{"S7", "the wait for a fence ends with the caller's patience", "deadline := least(until, start + wait_ms,", "deadline := least(until,", "fencedb.TestANewcomerWaitsNoLongerThanItMay"},
		{"S7", "the wait for a fence ends with the lease", "deadline := least(until, start", "deadline := least(start", "migrations.TestWaitingForSeveralFencesEndsWithTheLease"},
		{"S7", "the server bounds a transaction that has waited or advanced", "    PERFORM fencedb.bound(until);\n    PERFORM fencedb.bound(until, '{transaction_timeout}');\n", "", "migrations.TestEnterBoundsTheTransactionAndNothingElse"},
		{"S7", "the server bounds a transaction in the common case", " || set_config('statement_timeout', limit_ms, true)\n                     || set_config('idle_in_transaction_session_timeout', limit_ms, true)", "", "migrations.TestEnterBoundsTheTransactionAndNothingElse"},
		{"S7", "a tighter limit stays", "IF current_ms = 0 OR current_ms > remaining_ms THEN", "IF current_ms IS NOT NULL THEN", "migrations.TestEnterBoundsTheTransactionAndNothingElse"},
		{"S7", "a lease that ends while its fences are entered is over", "IF until < extract(epoch FROM clock_timestamp()) * 1000 THEN\n        RAISE EXCEPTION 'the lease is over: its validity ended", "IF false THEN\n        RAISE EXCEPTION 'the lease is over: its validity ended", "migrations.TestALeaseThatEndsWhileEnteringIsOver"},
	}},
	{"migrations/sql/00002_audit.sql", []guard{
		{"S4", "a record cannot be deleted, except by age", "AND current_user = (SELECT pg_get_userbyid(c.relowner) FROM pg_class c WHERE c.oid = TG_RELID) THEN", "THEN", "migrations.TestWhoWritesAllDataCannotDeleteARecord"},
		{"S4", "only the function that does a thing records it", "IF event IN ('protect', 'observe',", "IF event IN ('observe',", "migrations.TestAnOperatorCannotRecordWhatTheServerDoes"},
	}},
	{"migrations/sql/00003_protect.sql", []guard{
		{"S4", "a statement without a token is refused, whatever it matches", "IF granted IS NULL OR TG_OP = 'TRUNCATE' THEN", "IF TG_OP = 'TRUNCATE' THEN", "migrations.TestNoWriteWithoutAToken"},
		{"S4", "TRUNCATE is refused", "IF granted IS NULL OR TG_OP = 'TRUNCATE' THEN", "IF granted IS NULL THEN", "migrations.TestNoWriteWithATokenOfAnotherResource"},
		{"S4", "a row that another table's trigger writes needs a token", "PERFORM fencedb.raise_no_token(target::text, operation, coalesce(after[1], before[1]));", "RETURN 0;", "migrations.TestForeignKeyActionsAreWritesToo"},
		{"S4", "a row needs the token of its own resource", "ELSIF (grants -> resource ->> 'entered')::boolean IS NOT TRUE THEN", "ELSIF false THEN", "migrations.TestNoWriteWithATokenOfAnotherResource"},
		{"S4", "a row that moves needs the tokens of both resources", "wanted   text[] := CASE operation WHEN 'INSERT' THEN after WHEN 'DELETE' THEN before ELSE before || after END;", "wanted   text[] := CASE operation WHEN 'DELETE' THEN before ELSE after END;", "migrations.TestARowThatMovesNeedsTheTokensOfBothResources"},
		{"S4", "a row without a resource is refused", "        IF resource IS NULL THEN\n", "        IF resource IS NULL THEN CONTINUE;\n", "migrations.TestARowWithoutAResourceIsRefused"},
		{"S4", "only a fence that this transaction has locked admits without its grants", "\n          AND (f.xmax = me OR f.xmin = me AND f.advanced_at >= transaction_timestamp())", "", "migrations.TestASettingForgedByHandOpensNothing"},
		{"S4", "a note of the guard has a checksum, where a row is like the one before", `AND pg_catalog.hashtextextended("~note", pg_catalog.txid_current()) OPERATOR(pg_catalog.=) pg_catalog.currval('fencedb.judgement')`, "", "migrations.TestANoteOfTheGuardForgedByHandOpensNothing"},
		{"S4", "a note is of one resource, for the row that comes", `AND (TG_OP OPERATOR(pg_catalog.=) 'DELETE' OR pg_catalog.substr("~note", 34) OPERATOR(pg_catalog.=) "~new")`, "", "migrations.TestTheGuardJudgesEveryRowAsIfItWereTheFirst"},
		{"S4", "a note is of one resource, for the row that was", `pg_catalog.substr("~note", 34) OPERATOR(pg_catalog.=) "~old"` + "\n            AND", "", "migrations.TestTheGuardJudgesEveryRowAsIfItWereTheFirst"},
		{"S7", "a note ends with the lease", `AND pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.<=) pg_catalog.substr("~note", 1, 14)::pg_catalog.float8`, "", "migrations.TestAWriteAfterTheLeaseIsOverIsRefused"},
		{"S7", "a write after the lease is over is refused", "    IF until < extract(epoch FROM clock_timestamp()) * 1000 THEN\n        RAISE EXCEPTION USING\n            ERRCODE = 'FN006'", "    IF false THEN\n        RAISE EXCEPTION USING\n            ERRCODE = 'FN006'", "migrations.TestAWriteAfterTheLeaseIsOverIsRefused"},
		{"S7", "later statements get what is left of the lease", "ELSIF remaining_ms < nullif(current_setting('fencedb.limit', true), '')::numeric THEN", "ELSIF false THEN", "migrations.TestEveryWriteDrawsTheTimeLimitsIn"},
		{"S5", "the stamp of a row refuses an older token when the ledger was emptied", "IF token < stored THEN", "IF false THEN", "migrations.TestARowRefusesAnOlderTokenEvenWithoutItsLedger"},
		{"S2", "the guard stamps the row, not the writer", "    NEW.last_fencing_token := \"~token\";\n    RETURN NEW;", "    RETURN NEW;", "migrations.TestTheStampCannotBeChosen"},
		{"S4", "a partition that was detached refuses every write", "IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = TG_RELID AND t.tgname = '~fencedb_row' AND t.tgparentid <> 0) THEN", "IF false THEN", "migrations.TestADetachedPartitionRefusesEveryWrite"},
		{"S4", "the resource of a row depends on the row alone", "    IF offender IS NOT NULL THEN\n        RAISE EXCEPTION 'it depends", "    IF false THEN\n        RAISE EXCEPTION 'it depends", "migrations.TestProtectNamesThePartThatDependsOnMoreThanTheRow"},
		{"S4", "the resource of a row does not depend on what comes after the guard", "    IF offender IS NOT NULL THEN\n        RAISE EXCEPTION 'it reads", "    IF false THEN\n        RAISE EXCEPTION 'it reads", "migrations.TestProtectRefusesAnExpressionThatCouldNotWork"},
		{"S4", "no setting of the session changes the resource of a row", "SET array_nulls = on\n    SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' SET timezone = 'UTC'", "SET array_nulls = on", "migrations.TestTheSessionsSettingsDoNotChangeTheResource"},
		{"S4", "no trigger changes a row after the guard", "ELSIF later IS NOT NULL THEN", "ELSIF false THEN", "migrations.TestProtectRefusesTriggersThatCouldChangeAJudgedRow"},
		{"S4", "a guard belongs to the owner of its table", "       OR NOT (SELECT pg_has_role(p.proowner, c.relowner, 'MEMBER') FROM pg_proc p, pg_class c WHERE p.oid = (guard || '()')::regprocedure AND c.oid = member) THEN", "       THEN", "migrations.TestProtectIsNotFooledByAPlantedTrigger"},
		{"S4", "a guard that was switched off is switched on by protecting again", "AND t.tgenabled NOT IN ('O', 'A') LOOP", "AND false LOOP", "migrations.TestProtectingAgainSwitchesADisabledGuardOn"},
		{"S4", "a table with rows without a resource is not protected", "IF nulls > 0 THEN", "IF false THEN", "migrations.TestProtectRefusesRowsWithoutAResource"},
		{"S4", "only the owner of a table records that it is protected", "ELSIF NOT pg_has_role(session_user, class.relowner, 'MEMBER') THEN", "ELSIF false THEN", "migrations.TestNobodyRecordsAProtectionThatIsNotTheirs"},
		{"S4", "nothing is read in the search_path of whoever migrates", "SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);", "SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true);", "migrations.TestNothingOfOursIsReadInTheSearchPathOfWhoeverMigrates"},
	}},
	{"migrations/sql/00004_row_fence.sql", []guard{
		{"S2", "a row that is its own fence refuses an older token", "ELSIF token > carried OR token = carried AND", "ELSIF token = carried AND", "migrations.TestARowIsItsOwnLedger"},
		{"S1", "it refuses the same token of another lease", "ELSIF token > carried OR token = carried AND lease <> (own ->> 'lease')::uuid THEN", "ELSIF token > carried THEN", "migrations.TestARowRefusesAnEqualTokenOfAnotherLease"},
		{"S4", "it needs a grant for itself", "ELSIF own IS NULL THEN", "ELSIF false THEN", "migrations.TestRowFencedWritesNeedAGrantForTheirRow"},
		{"S5", "it is not deleted, and keeps its resource", "ELSIF operation = 'DELETE' OR before <> after THEN", "ELSIF false THEN", "migrations.TestARowFenceCannotBeTakenAway"},
		{"S2", "only the stamp that a reset names is annulled", "AND concat_ws(' ', token, lease) = ANY (f.annulled)\n", "AND f.annulled IS NOT NULL\n", "migrations.TestOnlyTheStampThatIsNamedIsAnnulled"},
		{"S2", "a resource is one row", "    IF several OR NOT EXISTS (", "    IF several AND NOT EXISTS (", "migrations.TestProtectRowRefusesResourcesOfSeveralRows"},
		{"S2", "to carry checks what to enter checks", "AND token BETWEEN 1 AND 9007199254740991 AND", "AND", "migrations.TestCarryChecksWhatEnterChecks"},
	}},
	{"migrations/sql/00005_once.sql", []guard{
		{"S6", "a key with another request is refused", "claim.fingerprint IS DISTINCT FROM once_begin.fingerprint OR ", "", "fencedb.TestOnceRefusesTheKeyOfAnotherRequest"},
		{"S6", "a result without a request is its role's alone", " OR claim.fingerprint IS NULL AND claim.role <> caller) THEN", ") THEN", "migrations.TestAResultIsNotReplayedToAStranger"},
		{"S6", "a result is not replaced", "WHERE o.key = once_end.key AND NOT o.done RETURNING", "WHERE o.key = once_end.key RETURNING", "fencedb.TestAStoredResultCannotBeReplaced"},
		{"S6", "only who claimed a key stores its result", "IF claimant <> coalesce(nullif(current_setting('role'), 'none'), session_user) THEN", "IF false THEN", "migrations.TestAStrangerDoesNotAnswerForAnother"},
	}},
	{"migrations/sql/00006_operators.sql", []guard{
		{"S5", "a fence that may be needed is not forgotten", "IF older_than IS NULL OR older_than < interval '1 day' THEN", "IF older_than IS NULL THEN", "migrations.TestOnlyOldFencesThatNobodyHoldsAreForgotten"},
		{"S5", "a fence that was set back is not forgotten", "- older_than AND f.annulled IS NULL", "- older_than", "migrations.TestAFenceThatWasSetBackIsNotForgotten"},
		{"S2", "a reset only sets back", "ELSIF former_token < reset_fence.token OR former_token = reset_fence.token AND row_token IS NULL THEN", "ELSIF false THEN", "migrations.TestAResetOnlySetsBack"},
	}},
	{"migrations/sql/00007_adopt.sql", []guard{
		{"S4", "a take-over ends", " AND t.until > clock_timestamp()", "", "migrations.TestATakeOverIsRecordedAndEnds"},
		{"S4", "a take-over is of one table", " AND t.target = fencedb.guarded_root(guarded))", ")", "migrations.TestATakeOverIsOfWhatIsWritten"},
		{"S2", "who overtakes enters above the stored token", "        token := stored + 1;\n    ELSE", "        token := stored;\n    ELSE", "migrations.TestATakeOverIsOfWhatIsWritten"},
		{"S4", "only who may enter lets others overtake", "ELSIF NOT has_function_privilege(session_user, 'fencedb.enter(text, bigint, uuid, bigint, bigint)', 'EXECUTE') THEN", "ELSIF false THEN", "migrations.TestWhoMayNotEnterLetsNobodyOvertake"},
		{"S4", "only the owner of a table lets others write to it", "    IF NOT coalesce(pg_has_role(session_user, (SELECT c.relowner FROM pg_class c WHERE c.oid = target), 'MEMBER'), false) THEN", "    IF false THEN", "migrations.TestATakeOverIsRecordedAndEnds"},
	}},
	{"fencedb/entry.go", []guard{
		{"S7", "the server learns how long the caller may wait", "return enterOne, append(args, patience(ctx)), nil", "return enterOne, append(args, (*int64)(nil)), nil", "fencedb.TestANewcomerWaitsNoLongerThanItMay"},
		{"S7", "a connection that falls silent is closed", "func() { _ = wire.Close() })", "func() { _ = wire })", "fencedb.TestASilentConnectionIsNotWaitedForLongerThanTheLease"},
		{"S7", "the next user of a connection is not bound", "				e.unwatch(conn)\n				release()", "				release()", "fencedb.TestTheNextUserOfAConnectionIsNotBoundByTheLeaseOfTheLast"},
		{"S7", "a connection that comes after the lease is not waited for", "bounded, cancel = context.WithDeadline(ctx, until)", "bounded, cancel = context.WithCancel(ctx)", "fencedb.TestAConnectionThatDoesNotComeInTimeEndsWithTheLease"},
	}},
	{"fencedb/grant.go", []guard{
		{"S7", "the grant that ends first bounds all", "until.Before(earliest) {", "until.After(earliest) {", "fencedb.TestTheEarliestEndOfSeveralGrantsBoundsTheTransaction"},
		{"S1", "two grants for one resource are refused", "before.Resource() == g.Resource() && (before.Token()", "false && (before.Token()", "fencedb.TestGrantsThatNobodyIssuedAreRefusedBeforeAnythingIsSent"},
		{"S3", "a carried grant among entered ones is entered", "			plain = append(plain, g)\n			allCarried = false", "			plain = append(plain, g)", "fencedb.TestACarriedGrantAmongEnteredOnesIsEntered"},
	}},
	{"fencedb/fencedtx.go", []guard{
		{"S3", "above READ COMMITTED the token is sealed first", "case !unsealed(err) || tries == sealTries:", "default:", "fencedb.TestANewcomerSeesWhatTheHolderBeforeHasWritten"},
	}},
	{"fencedb/tx.go", []guard{
		{"S6", "after a lost COMMIT the server is asked", "return tx.entry.settle(tx.ctx, askOn(tx.db), err, true, true)", "return tx.entry.explain(tx.ctx, nil, true, err)", "fencedb.TestTheOutcomeOfALostCommitIsKnown"},
		{"S6", "a statement that may have ended the transaction is asked about", "if tx.mayHaveEnded && conn.PgConn().TxStatus() == 'T' {", "if false {", "fencedb.TestAStatementThatEndsTheTransactionIsNoticed"},
		{"S2", "a transaction that is kept begins nothing later", "		tx.err = pgx.ErrTxClosed // it must not begin later, when nobody would end it\n", "", "fencedb.TestATransactionOutlivesNothing"},
	}},
	{"fencedb/oneshot.go", []guard{
		{"S6", "a callback that fails after the commit is ErrCommitted", `return fmt.Errorf("%w: %w", ErrCommitted, callbackErr)`, "return callbackErr", "fencedb.TestAFailingCallbackDoesNotHideThatTheBatchCommitted"},
	}},
	{"fencedb/outcome.go", []guard{
		{"S6", "a transaction in progress is waited for", `case status == "aborted":`, `case status != "":`, "fencedb.TestATransactionStillInProgressIsWaitedFor"},
		{"S6", "only an ERROR of Postgres says that it did not commit", `pgErr.SeverityUnlocalized == "ERROR"`, "pgErr.Code != \"\"", "fencedb.TestTheOutcomeOfACommitThatPgBouncerLost"},
	}},
	{"fencedb/explain.go", []guard{
		{"S7", "a transaction that outlasts its time under a renewed lease says so", "time.Now().Before(until) { // renewed", "false { // renewed", "fencedb.TestATransactionThatOutlastsItsValidityIsNotALeaseThatIsOver"},
	}},
	{"lease/internal/redis/common.lua", []guard{
		{"L2", "a token that is no number ends nothing", "if not last or last > MAX_WHOLE then return nil, corrupt", "if not last then return nil, corrupt", "lease.TestCorruptKeysAreRefusedAndLeftAlone"},
	}},
	{"lease/internal/redis/holder.lua", []guard{
		{"L1", "a holder without an expiry is not taken for one", "if held.left < 0 then return nil, corrupt(key, 'has no expiry') end", "", "lease.TestCorruptKeysAreRefusedAndLeftAlone"},
	}},
	{"lease/internal/redis/acquire.lua", []guard{
		{"L2", "tokens end before Lua miscounts, in the common case", "if token <= 9007199254740991 then", "if true then", "lease.TestTokensEndBeforeLuaMiscounts"},
		{"L2", "tokens end before Lua miscounts", "if r.token > MAX_WHOLE then return {'exhausted'} end", "", "lease.TestTokensEndBeforeLuaMiscounts"},
	}},
	{"lease/internal/redis/extend.lua", []guard{
		{"L2", "a long hold keeps the last token alive", "  redis.call('PEXPIRE', fence, digits(retention))\n", "", "lease.TestTheFenceOutlivesTheLease"},
		{"L5", "a holder that was revoked learns it", "if was_revoked(ended, id, token) then return {'revoked'} end", "", "lease.TestRevoke"},
	}},
	{"lease/internal/redis/release.lua", []guard{
		{"L5", "a release of a lease that was revoked says so", "  if was_revoked(ended, id, token) then return {'revoked'} end\n", "", "lease.TestARevokedHolderLearnsItAtRelease"},
	}},
	{"lease/internal/redis/verify.lua", []guard{
		{"L4", "a lease is verified by id and token", " or held.token ~= digits(token) then", " then", "lease.TestVerifyTellsThreeThingsApart"},
		{"L2", "a token that was passed is stale", "if last > token then return {'stale', digits(last)} end", "", "lease.TestVerifyTellsThreeThingsApart"},
	}},
	{"lease/internal/redis/eval.lua", []guard{
		{"L4", "only the exact holder writes to Redis", "if not held or held.id ~= id or held.token ~= digits(token) then", "if not held then", "lease.TestOnlyTheHolderWritesToRedis"},
		{"L4", "nobody writes to Redis under a lease that it has forgotten", "if not held or held.id ~= id or held.token ~= digits(token) then", "if held and (held.id ~= id or held.token ~= digits(token)) then", "lease.TestAHolderThatRedisHasForgottenDoesNotWrite"},
		{"L2", "a holder whose token was passed does not write to Redis", "if last > token then return {'stale', digits(last)} end", "", "lease.TestOnlyTheHolderWritesToRedis"},
	}},
	{"lease/internal/redis/revoke.lua", []guard{
		{"L1", "of two supervisors one takes over", " or from > 0 and math.max(last, held and tonumber(held.token) or 0) > from then", " then", "lease.TestTwoSupervisorsOneTakesOver"},
		{"L4", "a revocation whose reply is lost happens once", "if by == revocation then", "if false then", "lease.TestARevocationWhoseReplyIsLostHappensOnce"},
	}},
	{"lease/internal/redis/raise.lua", []guard{
		{"L7", "to raise never lowers", "last = math.max(last, floor)", "last = floor", "lease.TestRaise"},
	}},
	{"lease/internal/redis/confirm.lua", []guard{
		{"L1", "a majority confirms only its own lease", "if held.id ~= id then return {'taken'} end", "", "lease.TestOnlyTheHolderIsConfirmed"},
		{"L2", "to confirm never lowers the last token", "digits(math.max(last, token))", "digits(token)", "lease.TestOnlyTheHolderIsConfirmed"},
	}},
	{"lease/internal/redis/once_record.lua", []guard{
		{"L4", "a run that has lost its claim records nothing", "if string.sub(held, 1, #me + 1) ~= me .. ':' then return {'lost'} end", "", "lease/once.TestARunnerThatWasStoppedIsRefused"},
	}},
	{"lease/internal/redis/semaphore_acquire.lua", []guard{
		{"L1", "no more holders than permits", "  if taken >= limit then\n", "  if false then\n", "lease.TestSemaphoreContractOnMiniredis"},
		{"L2", "the tokens of permits end before Lua miscounts", "if token > MAX_WHOLE then return {'exhausted'} end", "", "lease.TestSemaphoreTokensThatAreUsedUp"},
	}},
	{"lease/internal/redis/semaphore_extend.lua", []guard{
		{"L4", "a permit that ran out is not extended", "find_living(owner, name, now)", "find(owner, name, '-inf')", "lease.TestSemaphoreAPlaceThatRanOutIsNotExtended"},
	}},
	{"lease/lease.go", []guard{
		{"L5", "no renewal reaches beyond MaxHold", "ttl = min(ttl, l.holdEnd.Sub(now).Truncate(time.Millisecond))", "_ = l.holdEnd", "lease.TestMaxHold"},
		{"L5", "a lease that Redis does not know any more is over", "	case answer.outcome != done:\n		l.end(answer.outcome.loss())\n		err = l.ended\n", "", "lease.TestLossIsNoticedByTheNextRenewal"},
		{"L5", "a renewal that fails is tried again", "		l.core.watchdog.retry(l)\n", "", "lease.TestOneRenewalMayFail"},
		{"L4", "a release that was carried out unheard is no loss", "case unsure && (result == gone || result == taken):", "case false:", "lease.TestLostReplies"},
		{"L8", "a release ends a renewal that hangs", "	defer context.AfterFunc(l.ctx, func() { stop(context.Cause(l.ctx)) })()\n", "", "lease.TestReleaseEndsAnExtendThatHangs"},
		{"L8", "a caller that cancels is no silence of Redis", "	case errors.Is(answer.err, context.Canceled):\n		err = answer.err // the caller has cancelled, which says nothing about Redis\n", "", "lease.TestACallerThatCancelsIsNotSilence"},
	}},
	{"lease/acquire.go", []guard{
		{"S8", "a lease that ends while it is sealed is not handed out", "	return l.Err()\n", "	return nil\n", "lease.TestSealThatOutlastsTheLease"},
		{"S8", "a lease that cannot be sealed is given back", "			leases.giveBack(ctx, a.call)\n			return nil, fmt.Errorf(\"lease: seal", "			return nil, fmt.Errorf(\"lease: seal", "lease.TestSeal"},
		{"L8", "what is granted while the issuer closes is given back", "if registry.closing() {", "if false {", "lease.TestCloseDuringASeal"},
		{"L1", "one that is lost while others are waited for loses all", "			err = leases.lost() // waiting may have taken longer than an earlier one lasts\n", "", "lease.TestAcquireAllLosesOneWhileWaiting"},
	}},
	{"lease/wait.go", []guard{
		{"L5", "a hand-over of which too little is left is not trusted", "	if !time.Now().Before(until) {\n", "	if false {\n", "lease.TestWhichGrantsAreBelieved"},
		{"L5", "a hand-over is not trusted where replicas have to confirm", " || c.cfg.Replicas > 0 {", " {", "lease.TestWhichGrantsAreBelieved"},
		{"L6", "waiting is bounded", "waiting, cancel := context.WithTimeoutCause(ctx, *a.patience-a.spent, waited)", "waiting, cancel := context.WithCancel(ctx)", "lease.TestWaitAtMost"},
	}},
	{"lease/giveback.go", []guard{
		{"L8", "Close ends the calls that are under way", "		cancel(ErrClosed)\n", "		_ = cancel\n", "lease.TestCloseDuringAnAcquisition"},
		{"L8", "the end of a context does not stop a release", "protocol.Insist(context.WithoutCancel(ctx), bound,", "protocol.Insist(ctx, bound,", "lease.TestReleaseOutlivesItsCaller"},
		{"L8", "what could not be given back is named", "		r.failed = append(r.failed, d.blocked()...)\n", "", "lease.TestCloseSaysWhatWasRefused"},
	}},
	{"lease/eval.go", []guard{
		{"L5", "nothing is written to Redis under a lease that is over", "	if err := l.Err(); err != nil {\n", "	if err := l.Err(); false {\n", "lease.TestOnlyTheHolderWritesToRedis"},
		{"L1", "a permit of a semaphore writes nothing to Redis", "	if l.core.cfg.permits > 0 {\n", "	if false {\n", "lease.TestWritesToRedisThatCannotBeFenced"},
	}},
	{"lease/quorum.go", []guard{
		{"L2", "the greatest token of a majority counts", "tokens[n] = max(tokens[n], token)", "tokens[n] = token", "lease.TestTokensOfAQuorumRiseWhateverMajorityGrants"},
		{"L1", "the votes that are missing can decide", "case count[done]+silent >= q.need:", "case false:", "lease.TestTheMissingVoteDecides"},
	}},
	{"lease/outer.go", []guard{
		{"L5", "a lease ends with the lock around it", "	if o.until.Before(t) {\n		return o.until\n	}\n", "", "lease.TestALeaseEndsBeforeTheLockAroundIt"},
	}},
}
