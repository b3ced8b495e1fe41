/* The device handshake: P ranks, C CTAs each, E epochs, CHUNKS chunks through SLOTS slots. What it says and leaves out:
 * README.md.
 *
 * case slots:   -DP=2 -DC=1 -DE=3 -DCHUNKS=5 -DSLOTS=3 -DPLAIN=1
 * case staged:  -DP=2 -DC=2 -DE=2 -DCHUNKS=2 -DSLOTS=1 -DPLAIN=1
 * case mixed:   -DP=2 -DC=2 -DE=2 -DCHUNKS=1 -DSLOTS=1 -DPLAIN=2
 * case differ:  -DP=2 -DC=2 -DE=2 -DCHUNKS=1 -DSLOTS=1 -DPLAIN=0 -DHASHES=2
 * case parity:  -DP=2 -DC=2 -DE=2 -DCHUNKS=1 -DSLOTS=1 -DPLAIN=0 -DHASHES=2 -DENTRY_PARITY
 * case three:   -DP=3 -DC=1 -DE=2 -DCHUNKS=1 -DSLOTS=1 -DPLAIN=0 -DHASHES=2
 * case mixed3:  -DP=3 -DC=1 -DE=1 -DCHUNKS=1 -DSLOTS=1 -DPLAIN=2
 * case abort:   -DP=2 -DC=1 -DE=2 -DCHUNKS=3 -DSLOTS=2 -DPLAIN=1 -DABORT
 * case host:    -DP=2 -DC=1 -DE=2 -DCHUNKS=2 -DSLOTS=1 -DPLAIN=2 -DHASHES=2 -DENTRY_PARITY -DHOST
 * case fetch:   -DP=3 -DC=1 -DE=1 -DCHUNKS=1 -DSLOTS=1 -DPLAIN=2 -DHOST -DFETCH
 * case again:   -DP=2 -DC=1 -DE=3 -DCHUNKS=1 -DSLOTS=1 -DPLAIN=2 -DHASHES=2 -DENTRY_PARITY -DHOST -DFETCH
 * case all:     -DP=3 -DC=1 -DE=1 -DCHUNKS=3 -DSLOTS=2 -DPLAIN=1 -DHOST -DBROADCAST
 *
 * mutant 1 mixed:   an entry word of an earlier epoch is accepted
 * mutant 2 three:   only the entry word of the next peer is read
 * mutant 3 differ:  a kernel that finds a difference leaves without exits
 * mutant 4 mixed:   only the first CTA waits for the entry words
 * mutant 5 slots:   a slot is taken one credit early
 * mutant 6 staged:  the chunk flag is raised before the chunk is stored
 * mutant 7 slots:   a chunk flag of an earlier epoch is accepted
 * mutant 8 slots:   a slot is given back before it is read
 * mutant 9 mixed:   a kernel leaves without waiting for exits
 * mutant 10 abort:  a spin that ignores the abort flag
 * mutant 11 mixed:  the first CTA to have read the epoch moves it on
 * mutant 12 mixed:  every CTA waits for the exit of the peer's first CTA alone
 * mutant 13 mixed:  the exit to a direct peer is raised before its rows are stored
 * mutant 14 fetch:  a rank shows its exit before it has fetched
 * mutant 15 again:  a rank fetches before it has read the entries
 * mutant 16 all:    a slot that all read is taken as soon as one has given it back
 */
#ifndef HASHES
#define HASHES 1
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

/* PLAIN: 0 every output lies in a window, 1 none does (all is staged), 2 each rank and epoch chooses. */
#define LEAST_PLAIN (PLAIN == 1)
#define MOST_PLAIN (PLAIN >= 1)

#define PAIR(r, q) ((r) * P + (q))
#define FLAG(r, q, c) (PAIR(r, q) * C + (c))
/* What all get lies in the sender's own window, once; else in the receiver's. */
#ifdef BROADCAST
#define SLOT(r, q, c, k) (FLAG(q, q, c) * SLOTS + (k) % SLOTS)
#else
#define SLOT(r, q, c, k) (FLAG(r, q, c) * SLOTS + (k) % SLOTS)
#endif
/* The mark of chunk k of epoch e, in flags and as payload: it only grows, so nothing is ever reset. */
#define MARK(e, k) ((e) * (CHUNKS + 1) + (k) + 1)
/* An entry word: epoch, contract hash, where the output lies. */
#define WORD(e, h, plain) ((e) * 4 + (h) * 2 + (plain))
#define EPOCH(w) ((w) / 4)
#define HASH(w) (((w) / 2) % 2)
#define IS_PLAIN(w) ((w) % 2)
#ifdef ENTRY_PARITY
#define ENTRY(r, q, e) (((e) % 2) * P * P + PAIR(r, q))
#else
#define ENTRY(r, q, e) PAIR(r, q)
#endif

/* Window memory of rank r, written by peer q: index (r, q). */
byte entry[2 * P * P];
byte ready[P * P * C];
byte credit[P * P * C];
byte exited[P * P * C];
byte slot[P * P * C * SLOTS];
byte output[P * P * C]; /* rows of q in the output of r, by CTA: the epoch that wrote them */

/* Device memory of a rank. */
byte epoch[P];   /* epochs begun */
byte readers[P]; /* CTAs of this launch that have read it */
byte left[P];    /* CTAs that have left */
bool error[P];  /* the error word */
bool plain[P];  /* kernel argument: the output lies outside any window */
bool aborted[P];
byte input[P];   /* what the buffer of a rank holds: the epoch, while its call lasts */

/* What is checked. */
byte entered[P];      /* the epoch that the stream of a rank has reached */
bool present[P];      /* its kernel runs */
bool closed[P];       /* its stream launches no more */
bool hash[2 * P];     /* contract hash by parity of the epoch and rank */
bool dead[P];
#define CONTRACT(e, r) hash[((e) % 2) * P + (r)]
#if P == 3
#define ALL(c) (c(0) && c(1) && c(2))
#define DIFFER(e) (CONTRACT(e, 0) != CONTRACT(e, 1) || CONTRACT(e, 0) != CONTRACT(e, 2))
#define ABORTING (aborted[0] || aborted[1] || aborted[2])
#else
#define ALL(c) (c(0) && c(1))
#define DIFFER(e) (CONTRACT(e, 0) != CONTRACT(e, 1))
#define ABORTING (aborted[0] || aborted[1])
#endif

/* For every peer, rotated by rank. */
#define PEERS(body) \
  q = (me + 1) % P; \
  do \
  :: q != me -> body; q = (q + 1) % P \
  :: else -> break \
  od

#ifdef ABORT
#if MUTANT == 10
#define SPIN(flag) (flag)
#else
#define SPIN(flag) \
  if \
  :: flag \
  :: aborted[me] -> goto leave \
  fi
#endif
#else
#define SPIN(flag) (flag)
#endif

/* Bytes go to rank q: it has entered, is still there (unless someone aborted), and nobody's contract differs. */
inline storeTo(where, value) {
  d_step {
    assert(entered[q] >= e);
    assert((entered[q] == e && present[q]) || ABORTING);
    assert(!DIFFER(e));
    where = value
  }
}

inline signalEntry() {
  entry[ENTRY(q, me, e)] = WORD(e, CONTRACT(n, me), plain[me])
}

inline readEntry() {
#if MUTANT == 1
  SPIN(EPOCH(entry[ENTRY(me, q, e)]) >= 1);
#elif MUTANT == 4
  SPIN(c > 0 || EPOCH(entry[ENTRY(me, q, e)]) == e);
#else
  SPIN(EPOCH(entry[ENTRY(me, q, e)]) == e);
#endif
  d_step {
    differs = differs || HASH(entry[ENTRY(me, q, e)]) != CONTRACT(n, me);
    toPlain = toPlain | (IS_PLAIN(entry[ENTRY(me, q, e)]) << q)
  }
}

inline storeDirect() {
  if
  :: (toPlain >> q) & 1
  :: else -> storeTo(output[FLAG(q, me, c)], e)
  fi
}

inline showExit() {
  exited[FLAG(q, me, c)] = e
}

/* A direct peer gets nothing more. */
inline exitDirect() {
  if
  :: (toPlain >> q) & 1
  :: else -> showExit()
  fi
}

/* What this rank gets from q, out of the input of q. */
inline fetch() {
  d_step {
    assert(entered[q] == e && present[q] && !DIFFER(e) && input[q] == e);
    output[FLAG(me, q, c)] = e
  }
}

inline fetchAll() {
  if
  :: plain[me] -> PEERS(fetch())
  :: else
  fi
}

/* The last chunk's flag says as well that nothing more will come. */
inline exitStaged() {
#ifndef HOST
  if
  :: pushed == CHUNKS - 1 -> showExit()
  :: else
  fi
#else
  skip
#endif
}

inline push() {
  if
  :: (toPlain >> q) & 1 ->
#if MUTANT == 6
    ready[FLAG(q, me, c)] = MARK(e, pushed);
    storeTo(slot[SLOT(q, me, c, pushed)], MARK(e, pushed))
#else
    storeTo(slot[SLOT(q, me, c, pushed)], MARK(e, pushed));
    d_step { ready[FLAG(q, me, c)] = MARK(e, pushed); exitStaged() }
#endif
  :: else
  fi
}

inline giveBack() {
  if
  :: drained + SLOTS < CHUNKS -> credit[FLAG(q, me, c)] = MARK(e, drained)
  :: else
  fi
}

inline drain() {
#if MUTANT == 8
  giveBack();
#endif
  d_step {
    assert(slot[SLOT(me, q, c, drained)] == MARK(e, drained));
    if
    :: drained == CHUNKS - 1 -> output[FLAG(me, q, c)] = e
    :: else
    fi
  }
#if MUTANT != 8
  giveBack()
#endif
}

#if MUTANT == 5
#define CREDIT_FOR(k) MARK(e, (k) - SLOTS - 1)
#else
#define CREDIT_FOR(k) MARK(e, (k) - SLOTS)
#endif
#define MAY_PUSH(r) \
  ((r) == me || ((toPlain >> (r)) & 1) == 0 || pushed < SLOTS || credit[FLAG(me, r, c)] >= CREDIT_FOR(pushed))
#if MUTANT == 16
#define MAY_PUSH_ALL (MAY_PUSH(0) || MAY_PUSH(1) || MAY_PUSH(2))
#undef MAY_PUSH
#define MAY_PUSH(r) ((r) != me && (pushed < SLOTS || credit[FLAG(me, r, c)] >= CREDIT_FOR(pushed)))
#else
#define MAY_PUSH_ALL ALL(MAY_PUSH)
#endif
#if MUTANT == 7
#define MAY_DRAIN(r) ((r) == me || ready[FLAG(me, r, c)] >= MARK(1, drained))
#else
#define MAY_DRAIN(r) ((r) == me || ready[FLAG(me, r, c)] >= MARK(e, drained))
#endif

/* Chunks in both directions, beside each other: a push waits for no drain of its own CTA. */
inline exchangeChunks() {
#ifdef FETCH
  pushed = CHUNKS;
  drained = CHUNKS;
#else
  pushed = (toPlain -> 0 : CHUNKS);
  drained = (plain[me] -> 0 : CHUNKS);
#endif
  do
  :: pushed < CHUNKS && MAY_PUSH_ALL -> PEERS(push()); pushed++
  :: drained < CHUNKS && ALL(MAY_DRAIN) -> PEERS(drain()); drained++
  :: pushed == CHUNKS && drained == CHUNKS -> break
#if defined(ABORT) && MUTANT != 10
  :: aborted[me] -> goto leave
#endif
  od
}

/* The epoch comes from device memory, so that a captured graph replays; the last CTA to have read it moves it on. */
inline enter() {
  e = epoch[me] + 1;
  d_step {
    readers[me]++;
#if MUTANT == 11
    if
    :: readers[me] == 1 -> epoch[me] = e
    :: else
    fi;
    readers[me] = readers[me] % C
#else
    if
    :: readers[me] == C -> epoch[me] = e; readers[me] = 0
    :: else
    fi
#endif
  }
}

/* One CTA of a launch. */
inline kernel() {
  enter();
  if
  :: c == 0 -> PEERS(signalEntry())
  :: else
  fi;
#if MUTANT == 15
  fetchAll();
#endif
#if MUTANT == 2
  q = (me + 1) % P;
  readEntry();
#else
  PEERS(readEntry());
#endif
  if
  :: differs ->
    error[me] = true;
#if defined(ENTRY_PARITY) || MUTANT == 3
    goto leave
#else
    PEERS(showExit())
#endif
  :: else ->
#if MUTANT == 13
    PEERS(exitDirect());
#endif
    PEERS(storeDirect());
#ifdef HOST
#if MUTANT == 14
    PEERS(showExit());
#endif
#if defined(FETCH) && MUTANT != 15
    fetchAll();
#endif
    exchangeChunks();
#if MUTANT != 14
    PEERS(showExit())
#endif
#else
    PEERS(exitDirect());
    exchangeChunks()
#endif
  fi;
#if MUTANT == 12
  PEERS(SPIN(exited[FLAG(me, q, 0)] >= e));
#elif MUTANT != 9
  PEERS(SPIN(exited[FLAG(me, q, c)] >= e));
#endif
leave:
  atomic {
    left[me]++;
    pushed = 0; drained = 0; differs = false; toPlain = 0; e = 0; q = 0
  }
}

inline launches() {
  for (n : 1 .. E) {
    if
    :: entered[me] == n -> kernel()
#ifdef ABORT
    :: closed[me] -> break
#endif
    fi
  }
}

proctype Cta(byte me, c) {
  byte n, e, q, toPlain, pushed, drained;
  bool differs;
#ifdef ABORT
  { launches() } unless { dead[me] }
#else
  launches()
#endif
}

/* The stream of rank me: one launch after the other. When a kernel has ended, its user reads the output. */
inline stream() {
  for (e : 1 .. E) {
    if
    :: aborted[me] -> break
    :: else
    fi;
    atomic {
      select(h : 0 .. HASHES - 1);
      select(where : LEAST_PLAIN .. MOST_PLAIN);
      CONTRACT(e, me) = h;
      plain[me] = where;
      error[me] = false;
      entered[me] = e;
      present[me] = true;
      input[me] = e;
      h = 0; where = 0
    }
    d_step {
      left[me] == C ->
      left[me] = 0;
      present[me] = false;
      input[me] = 0;
      for (q : 0 .. P * C - 1) {
        assert(aborted[me] || DIFFER(e) || q / C == me || output[me * P * C + q] == e);
        assert(!DIFFER(e) || output[me * P * C + q] != e)
      }
      assert(aborted[me] || error[me] == DIFFER(e));
      q = 0
    }
  }
  closed[me] = true
}

proctype Stream(byte me) {
  byte e, h, where, q;
#ifdef ABORT
  { stream() } unless { dead[me] }
#else
  stream()
#endif
}

#ifdef ABORT
/* A rank may die at any step; at any step, and always after a death, the hosts of the others raise their abort flags.
 * Nothing depends on a rank's number, so it is rank 0 that dies, or that aborts first. */
proctype Hosts() {
  byte r;
  if
  :: dead[0] = true
  :: skip
  :: goto quiet
  fi;
  for (r : 0 .. P - 1) { aborted[r] = true }
quiet:
  skip
}
#endif

init {
  byte r, i;
  atomic {
    for (r : 0 .. P - 1) {
      run Stream(r);
      for (i : 0 .. C - 1) { run Cta(r, i) }
    }
#ifdef ABORT
    run Hosts();
#endif
  }
}
