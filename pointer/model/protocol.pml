/*
 * The commit point of one pointer: leases, publish, settle, epochs, and everything that can come
 * in between. Two workers, two connections to the database, three generations, one raising of the
 * epoch, and a clock that may pass a lease's end and step back behind it at any time.
 *
 * What is one atomic step here is one statement or one commit there. A publish takes its locks in
 * steps of their own, so that time passes and others act while it waits; its connection may break
 * at any step, its request may arrive twice or after everybody has given up, its answer may be
 * lost.
 *
 * Of generations before the newest nothing is kept: a publish names its generation, and only the
 * newest can be published. Each BROKEN_... leaves out one rule of the protocol; spin must then
 * find a violation.
 */

#define GENERATIONS 3
#define OPERATIONS  2 /* at a time: an operation that nobody can speak of any more gives up its place */

/* What an operation came to. */
#define NONE      0
#define PUBLISHED 1
#define REFUSED   2
#define ABORTED   3

/* What the newest generation came to. */
#define LEASED   1
#define DONE     2 /* published */
#define RELEASED 3
#define EXPIRED  4

/* The database. */
byte epoch = 1;
byte head;                  /* newest generation; they count from 1 */
byte head_epoch;
byte fate;                  /* of the newest generation */
bool over;                  /* the clock is past the end of its lease */
byte shown;
byte outcome[OPERATIONS];
bool row_locked;
bool op_locked[OPERATIONS];
byte deciding;              /* transactions that hold the epoch's lock, shared */

/* The world around it. */
byte names[OPERATIONS];     /* the generation that an operation is to publish; 0: a free place */
bool waited[OPERATIONS];    /* by the worker whose operation it is */
byte job[2];                /* the request that a connection has, operation + 1; it may take its time */

/* What was said, for the assertions only. */
byte told[OPERATIONS];
bool told_expired;          /* of the newest generation */
byte highest_head, highest_epoch;

#define LIVE(g) (head == g && fate == LEASED && head_epoch == epoch && !over)

/* Once a caller was told an outcome, it is the recorded one, and no other is ever told. */
inline tell(o, what) {
	assert(told[o] == NONE || told[o] == what);
	told[o] = what
}

inline lock_op(o) { atomic { !op_locked[o] -> op_locked[o] = true } }
/* When nobody waits for an operation and no request of it is under way, it is forgotten. */
inline forget(o) {
	if
	:: !waited[o] && job[0] != o + 1 && job[1] != o + 1 -> names[o] = 0; outcome[o] = NONE; told[o] = NONE
	:: else
	fi
}

inline unlock_all(o) { op_locked[o] = false; row_locked = false; deciding-- }

/* An expiry that somebody was told of is written down, so that no clock revives the lease. */
inline note_expiry() {
	told_expired = true;
#ifndef BROKEN_EXPIRY
	fate = EXPIRED; over = false
#endif
}

/* Ends a connection's work on its request. */
inline hang_up() {
	over_with = job[me] - 1; job[me] = 0; forget(over_with); over_with = 0; verdict = 0; alive = false
}

#ifdef BROKEN_FACTS
#define NEWEST(g) (seen_head == g && seen_fate == LEASED)
#else
#define NEWEST(g) (head == g && fate == LEASED)
#endif
#ifdef BROKEN_CLOCK
#define CLOCK seen_over
#else
#define CLOCK over
#endif

#define o (job[me] - 1)
#define g names[o]

/* A connection of a service: carries out publishes. */
proctype Connection(byte me) {
	byte verdict, over_with;
	bool alive;
#ifdef BROKEN_FACTS
	byte seen_head, seen_fate;
#endif
#ifdef BROKEN_CLOCK
	bool seen_over;
#endif
end:	do
	:: job[me] != 0 ->
#ifdef BROKEN_CLOCK
		seen_over = over;
#endif
#ifdef BROKEN_FACTS
		d_step { seen_head = head; seen_fate = fate };
#endif
		d_step { !row_locked -> row_locked = true; deciding++; alive = !over };
		d_step { !op_locked[o] -> op_locked[o] = true };
		if
		:: d_step { outcome[o] != NONE -> tell(o, outcome[o]); unlock_all(o); hang_up() } /* the recorded one again */
		:: outcome[o] == NONE ->
			/* Facts and clock, after the last lock. */
			d_step {
				if
				:: NEWEST(g) && head_epoch == epoch && !CLOCK ->
					verdict = PUBLISHED;
					assert(alive || !over) /* within the lease, under the lock */
				:: NEWEST(g) && head_epoch == epoch && CLOCK -> verdict = EXPIRED
				:: else -> verdict = REFUSED
				fi;
				alive = false
			};
			if
			:: d_step { unlock_all(o); hang_up() } /* the connection breaks: the server rolls back */
			:: /* COMMIT */
				d_step {
					if
					:: verdict == PUBLISHED ->
						assert(head == g && fate == LEASED); /* not superseded, not ended, not published */
						assert(head_epoch == epoch);         /* of this history */
						assert(!told_expired);
						assert(g > shown);                   /* what is shown only rises */
						assert(told[o] == NONE);             /* settled is settled */
						fate = DONE; over = false; shown = g
					:: verdict == EXPIRED -> note_expiry(); verdict = REFUSED
					:: else
					fi;
#ifndef BROKEN_OUTCOME
					outcome[o] = verdict;
#endif
					unlock_all(o)
				};
#ifdef BROKEN_OUTCOME
				/* In a transaction of its own, which may never come. */
				if
				:: d_step { !op_locked[o] && outcome[o] == NONE -> outcome[o] = verdict }
				:: skip
				fi;
#endif
				if
				:: d_step { tell(o, verdict); hang_up() }
				:: d_step { hang_up() } /* the answer is lost */
				fi
			fi
		fi
	od
}

#undef g
#undef o

/*
 * The short transactions of a worker. Each holds the row's lock from its first statement to its
 * commit, so that nothing but the clock can come in between: they are one step.
 */

/* Installs the next generation, unless a live lease stands in the way. */
inline acquire() {
	if
	:: head > 0 && LIVE(head) -> skip
	:: else ->
		/* A lease that has not ended by itself is superseded. */
		head++; head_epoch = epoch; fate = LEASED; over = false;
		/* Tokens only rise, whatever happened to leases and epochs. */
		assert(head_epoch > highest_epoch || (head_epoch == highest_epoch && head > highest_head));
		highest_head = head; highest_epoch = head_epoch;
		told_expired = false;
		mine = head
	fi
}

inline renew() {
	if
	:: LIVE(mine) ->
		assert(!told_expired) /* its end moves away; it was not reached yet */
	:: head == mine && fate == LEASED && head_epoch == epoch && over -> note_expiry()
	:: else
	fi
}

inline release() {
	if
	:: head == mine && fate == LEASED ->
		fate = RELEASED; over = false;
#ifdef BROKEN_RELEASE
		head-- /* takes the lease's row away, and its number with it */
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

proctype Worker() {
	byte mine, op;
	bool waits;
end:	do
	:: d_step { mine == 0 && head < GENERATIONS && !row_locked -> acquire() }
	:: d_step { mine != 0 && !waits && !row_locked -> renew() }
	:: d_step { mine != 0 && !waits && !row_locked -> release() }
	:: d_step { mine != 0 && !waits -> mine = 0 } /* forgets it, as a crash does */
	:: d_step { mine != 0 && !waits && (names[0] == 0 || names[1] == 0) ->
		op = (names[0] == 0 -> 0 : 1);
		names[op] = mine; waited[op] = true; waits = true }
	/* Sends it, for the first time or again. */
	:: d_step { waits && told[op] == NONE && job[0] == 0 -> job[0] = op + 1 }
	:: d_step { waits && told[op] == NONE && job[0] != 0 && job[1] == 0 -> job[1] = op + 1 }
	:: d_step { waits && told[op] == NONE && !op_locked[op] -> settle(op) }
	:: d_step { waits && told[op] != NONE -> waits = false; waited[op] = false; forget(op); op = 0 }
	od
}

/* A restore or a failover: every lease of the old history is dead. */
proctype Administrator() {
end:	d_step {
#ifndef BROKEN_EPOCH
		deciding == 0 -> /* waits for the decisions under way */
#endif
		epoch++
	}
}

proctype Clock() {
end:	do
	:: d_step { fate == LEASED -> over = !over }
	od
}

init {
	atomic {
		run Connection(0); run Connection(1);
		run Worker(); run Worker();
		run Administrator(); run Clock()
	}
}
