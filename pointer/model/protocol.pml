/*
 * The commit point of one pointer: leases, publish, settle, epochs, and everything that can come
 * in between. Two workers, two connections to the database, three generations, one raising of the
 * epoch, and a clock that ticks and once steps back.
 *
 * What is one atomic step here is one statement or one commit there. A transaction takes its locks
 * in steps of their own, so that time passes and others act while it waits.
 *
 * Each BROKEN_... leaves out one rule of the protocol; spin must then find a violation.
 */

#define GENERATIONS 3
#define OPERATIONS  3
#define TTL         1
#define END_OF_TIME 3

/* What an operation came to. */
#define NONE      0
#define PUBLISHED 1
#define REFUSED   2
#define ABORTED   3

/* What a generation came to. */
#define LEASED     1
#define DONE       2 /* published */
#define RELEASED   3
#define EXPIRED    4
#define SUPERSEDED 5

#define GEN (GENERATIONS + 1) /* generations count from 1 */

/* The database. */
byte epoch = 1;
byte head;                /* newest generation */
byte head_epoch;          /* epoch of the newest token */
byte expiry;              /* of the newest generation's lease */
byte shown;
byte fate[GEN];
byte of_epoch[GEN];
byte outcome[OPERATIONS];
byte published_by[GEN];   /* operation + 1 */
bool row_locked;
bool op_locked[OPERATIONS];
byte deciding;            /* transactions that hold the epoch's lock, shared */

/* The world around it. */
byte now;
bool stepped_back;
byte next_op;
byte answer[OPERATIONS];             /* that arrived */
chan wire = [1] of { byte, byte };   /* publish requests under way: operation, generation */

/* What was said and seen, for the assertions only. */
byte told[OPERATIONS];
bool told_expired[GEN];
byte highest_head, highest_epoch;

#define LIVE(g, t) (fate[g] == LEASED && head == g && of_epoch[g] == epoch && expiry > t)

/* Once a caller was told an outcome, it is the recorded one, and no other is ever told. */
inline tell(o, what) {
	assert(told[o] == NONE || told[o] == what);
	told[o] = what; answer[o] = NONE
}

/* An answer on its way; nobody waits for it any more once the outcome was told. */
inline reply(o) {
	assert(told[o] == NONE || told[o] == outcome[o]);
	answer[o] = (told[o] == NONE -> outcome[o] : NONE)
}

inline lock_op(o) { atomic { !op_locked[o] -> op_locked[o] = true } }
inline unlock_all(o) { op_locked[o] = false; row_locked = false; deciding-- }

/* An expiry that somebody was told of is written down, so that no clock revives the lease. */
inline note_expiry(g, t) {
	if
	:: head == g && fate[g] == LEASED && of_epoch[g] == epoch && expiry <= t ->
		told_expired[g] = true;
#ifndef BROKEN_EXPIRY
		fate[g] = EXPIRED
#endif
	:: else
	fi
}

/* A connection of a service: carries out publishes, and may break at any step. */
active [2] proctype Connection() {
	byte o, g, t, seen_head, seen_fate;
	bool ok, alive;
end:	do
	:: wire ? o, g ->
#ifdef BROKEN_CLOCK
		t = now; ok = true;
#endif
#ifdef BROKEN_FACTS
		atomic { seen_head = head; seen_fate = fate[g] }
#endif
		atomic { !row_locked -> row_locked = true; deciding++; alive = expiry > now };
		lock_op(o);
		if
		:: outcome[o] != NONE ->
			/* Repeated: the recorded outcome again. */
			d_step { reply(o); unlock_all(o) }
		:: else ->
			/* Facts and clock, after the last lock. */
			d_step {
				alive = alive || expiry > now;
#ifndef BROKEN_CLOCK
				t = now;
#endif
#ifndef BROKEN_FACTS
				seen_head = head; seen_fate = fate[g];
#endif
				ok = seen_head == g && seen_fate == LEASED && of_epoch[g] == epoch && expiry > t
			};
			if
			:: /* the connection breaks: the server rolls back */
				d_step { unlock_all(o) }
			:: /* COMMIT */
				d_step {
					if
					:: ok ->
						alive = alive || expiry > now;
						assert(head == g && fate[g] == LEASED); /* not superseded, not ended */
						assert(alive);                          /* within the lease, under the lock */
						assert(of_epoch[g] == epoch);           /* of this history */
						assert(!told_expired[g]);
						assert(published_by[g] == 0);           /* once per generation */
						assert(g > shown);                      /* what is shown only rises */
						assert(told[o] == NONE);                /* settled is settled */
						fate[g] = DONE; shown = g; published_by[g] = o + 1
					:: else -> note_expiry(g, t)
					fi;
#ifndef BROKEN_OUTCOME
					outcome[o] = (ok -> PUBLISHED : REFUSED);
#endif
					unlock_all(o)
				};
#ifdef BROKEN_OUTCOME
				if
				:: lock_op(o);
					d_step { outcome[o] = (outcome[o] == NONE -> (ok -> PUBLISHED : REFUSED) : outcome[o]); op_locked[o] = false }
				:: skip
				fi;
#endif
				if
				:: d_step { reply(o) }
				:: skip /* the answer is lost */
				fi
			fi
		fi;
		d_step { o = 0; g = 0; t = 0; ok = false; alive = false; seen_head = 0; seen_fate = 0 }
	od
}

/*
 * The short transactions of a worker. Each holds the row's lock from its first statement to its
 * commit, so that nothing but the clock can come in between: they are one step.
 */

/* Installs the next generation: mine is its number, or stays 0 when the lease is held. */
inline acquire() {
	if
	:: head > 0 && LIVE(head, now) -> skip
	:: else ->
		if
		:: head > 0 && fate[head] == LEASED -> fate[head] = SUPERSEDED
		:: else
		fi;
		head++; head_epoch = epoch;
		/* Tokens only rise, whatever happened to leases and epochs. */
		assert(head_epoch > highest_epoch || (head_epoch == highest_epoch && head > highest_head));
		highest_head = head; highest_epoch = head_epoch;
		fate[head] = LEASED; of_epoch[head] = epoch; expiry = now + TTL; mine = head
	fi
}

inline renew() {
	if
	:: LIVE(mine, now) ->
		assert(!told_expired[mine]);
		expiry = (now + TTL > expiry -> now + TTL : expiry)
	:: else -> note_expiry(mine, now)
	fi
}

inline release() {
	if
	:: fate[mine] == LEASED ->
		fate[mine] = RELEASED;
#ifdef BROKEN_RELEASE
		head--
#endif
	:: else
	fi;
	mine = 0
}

/* The final outcome. One in flight holds the operation's lock and is waited for. */
inline settle(o) {
	if
	:: outcome[o] == NONE ->
#ifndef BROKEN_SETTLE
		outcome[o] = ABORTED;
#endif
		tell(o, ABORTED)
	:: else -> tell(o, outcome[o])
	fi
}

active [2] proctype Worker() {
	byte mine, op;
	bool sent, repeated;
end:	do
	:: d_step { mine == 0 && head < GENERATIONS && !row_locked -> acquire() }
	:: d_step { mine != 0 && !sent && !row_locked -> renew() }
	:: d_step { mine != 0 && !sent && !row_locked -> release() }
	:: d_step { mine != 0 && !sent -> mine = 0 } /* forgets it, as a crash does */
	:: atomic { mine != 0 && !sent && next_op < OPERATIONS && nfull(wire) ->
		op = next_op; next_op++; sent = true; wire ! op, mine }
	:: atomic { sent && !repeated && nfull(wire) -> repeated = true; wire ! op, mine } /* the same operation again */
	:: d_step { sent && answer[op] != NONE -> tell(op, answer[op]); sent = false; repeated = false; op = 0 }
	:: d_step { sent && !op_locked[op] -> settle(op); sent = false; repeated = false; op = 0 }
	od
}
/* A restore or a failover: every lease of the old history is dead. */
active proctype Administrator() {
end:	d_step {
#ifndef BROKEN_EPOCH
		deciding == 0 -> /* waits for the decisions under way */
#endif
		epoch++
	}
}

active proctype Clock() {
end:	do
	:: now < END_OF_TIME -> now++
	:: atomic { now > 0 && !stepped_back -> now--; stepped_back = true }
	od
}
