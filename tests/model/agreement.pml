/* Agreement through the shared control page: N ranks, K rounds. What it says and leaves out: README.md.
 *
 * case calls:    -DN=3 -DK=3 -DHITS=1 -DHITTERS=2
 * case hits:     -DN=3 -DK=2 -DHITS=2 -DHITTERS=2
 * case long:     -DN=3 -DK=4 -DHITS=1 -DHITTERS=1
 * case silent:   -DN=3 -DK=3 -DHITS=1 -DHITTERS=1 -DSILENT
 * case death:    -DN=3 -DK=2 -DHITS=1 -DHITTERS=1 -DDEATHS=1
 * case deaths:   -DN=3 -DK=3 -DHITS=0 -DDEATHS=2
 * case deadline: -DN=3 -DK=2 -DHITS=1 -DHITTERS=1 -DDEADLINES=2
 * case abort:    -DN=3 -DK=2 -DHITS=1 -DHITTERS=1 -DABORTS=1
 * case late:     -DN=3 -DK=2 -DHITS=0 -DDEATHS=1 -DDEADLINES=2
 * case both:     -DN=3 -DK=2 -DHITS=0 -DDEATHS=1 -DABORTS=1
 * case given:    -DN=3 -DK=2 -DHITS=0 -DDEADLINES=1 -DABORTS=1
 *
 * mutant 1 deadline: a deadline is decided by the local timer, not by the word
 * mutant 2 calls:    the scan is made before the post
 * mutant 3 calls:    a mismatch is raised before every lane has left the previous round
 * mutant 4 deadline: slots and words are not split by parity
 * mutant 5 calls:    complete with the last rank's post missing
 * mutant 6 deadline: complete is stored, not compared and swapped
 * mutant 7 death:    a wait that ignores a death
 * mutant 8 calls:    records in two slots, not three
 * mutant 9 hits:     a hit ignores the failed word
 * mutant 10 silent:  a wait that ignores the hits of its peers
 * mutant 11 calls:   hits are not cleared when a round is observed
 * mutant 12 calls:   the records do not carry the hits
 * mutant 13 abort:   a wait that ignores the abort flag
 * mutant 14 death:   a round starts with a wait for the lanes, where no word can end it
 * mutant 15 given:   an abort that is there before the call ends it without the word
 * mutant 16 death:   a word is changed though it speaks of this round already
 * mutant 17 deaths:  a wait leaves it to the last rank to complete the round, which may die before it has
 */
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef DEADLINES
#define DEADLINES 0
#endif
#ifndef ABORTS
#define ABORTS 0
#endif
#ifndef HITTERS
#define HITTERS N
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

/* A decision word, one byte: the round, a state, and for failed states the rank that is to blame. A round is open as
 * long as the word of its parity speaks of an earlier one. */
#define COMPLETE 0
#define MISMATCH 1
#define REMOTE 2
#define TIMEOUT 3
#define ABORTED 4
#define WORD(k, state, rank) ((k) * 32 + (state) * 4 + (rank))
#define ROUND(w) ((w) / 32)
#define STATE(w) (((w) / 4) % 8)
#define FAILED(w, k) (ROUND(w) == (k) && STATE(w) >= MISMATCH)
#define STICKY(w) (STATE(w) >= REMOTE)

#if MUTANT == 4
#define PARITY(k) 0
#else
#define PARITY(k) ((k) % 2)
#endif
#define POST(k, r) (PARITY(k) * N + (r))
/* Records are read after the lane has shown the round as observed, so there are three slots: see README.md. */
#if MUTANT == 8
#define RECORD(k, r) (((k) % 2) * N + (r))
#else
#define RECORD(k, r) (((k) % 3) * N + (r))
#endif

/* The control page. */
byte decision[2];    /* per parity; zero reads as complete(0) */
byte posted[2 * N];  /* per parity and rank: the round last posted */
byte record[3 * N];  /* per slot and rank: round * 4 + hits, all that a contract is here */
byte lane[N];        /* per rank: rounds observed * 4 + hits posted since */
byte aborted;        /* 1 + the rank that aborted */

/* What the world does. */
byte dead;           /* mask of ranks that died */
byte deadlines = DEADLINES;

/* What is checked. */
byte verdict[K + 1];   /* the outcome of a round, as the first rank to observe it saw it */
byte chosen[K + 1];    /* mask of the numbers of hits that ranks chose before a round */
byte concluded[K + 1]; /* mask of the ranks that have its outcome */

/* posted == k is stable while k is undecided, and so is each condition on a lane below: reading them at one instant
 * allows the same outcomes as reading them one after the other. */
#if N == 3
#define ALL(c) (c(0) && c(1) && c(2))
#define ANY(c) (c(0) || c(1) || c(2))
#define FIRST(c) (c(0) -> 0 : (c(1) -> 1 : 2))
#else
#define ALL(c) (c(0) && c(1))
#define ANY(c) (c(0) || c(1))
#define FIRST(c) (c(0) -> 0 : 1)
#endif
#if MUTANT == 5
#define IS_POSTED(r) ((r) == N - 1 || posted[POST(k, r)] == k)
#else
#define IS_POSTED(r) (posted[POST(k, r)] == k)
#endif
#define IS_MISSING(r) (!IS_POSTED(r))
#define IS_DEAD(r) ((dead >> (r)) & 1)
#define IS_GONE(r) (IS_DEAD(r) && IS_MISSING(r))
#define IS_OBSERVED(r) (lane[r] / 4 == k - 1)
#define HIT_MORE(r) (lane[r] / 4 == k - 1 && lane[r] % 4 > hits && IS_MISSING(r))
#define IS_INTACT(r) (record[RECORD(k, r)] / 4 == k)
#define DIFFERS(r) (record[RECORD(k, r)] % 4 != record[RECORD(k, 0)] % 4)

#define UNDECIDED (ROUND(decision[PARITY(k)]) != k)

/* Load, compare, exchange. It may come late; but no word speaks of a later round while a rank is in this one, so between
 * the load and the exchange the word can but have come to speak of this round, and one step is as good as two. */
inline decide(outcome) {
  atomic {
    assert(ROUND(decision[PARITY(k)]) <= k);
    if
#if MUTANT == 16
    :: decision[PARITY(k)] = outcome
#else
    :: UNDECIDED -> decision[PARITY(k)] = outcome
    :: else
#endif
    fi
  }
}

inline completeIfAllPosted() {
  if
  :: ALL(IS_POSTED) ->
#if MUTANT == 6
    decision[PARITY(k)] = WORD(k, COMPLETE, 0)
#else
    decide(WORD(k, COMPLETE, 0))
#endif
  :: else
  fi
}

inline fail(state) {
  decide(WORD(k, state, blame));
  blame = 0
}

/* The deadline has passed: one more scan, for the last rank may have posted and not yet completed the round. */
inline outOfTime() {
  atomic {
    if
    :: ALL(IS_POSTED) -> blame = N
    :: else -> blame = FIRST(IS_MISSING)
    fi
  }
  if
  :: blame == N -> blame = 0; decide(WORD(k, COMPLETE, 0))
#if MUTANT == 1
  :: else -> out = WORD(k, TIMEOUT, blame); break
#else
  :: else -> fail(TIMEOUT)
#endif
  fi
}

inline waitForDecision() {
  do
  :: atomic { !UNDECIDED -> out = decision[PARITY(k)]; break }
#if DEATHS > 0 && MUTANT != 17 /* where nobody dies the posts alone must do: mutant 2 */
  :: UNDECIDED && ALL(IS_POSTED) -> decide(WORD(k, COMPLETE, 0))
#endif
#if DEATHS > 0 && MUTANT != 7
  :: atomic { UNDECIDED && ANY(IS_GONE) -> blame = FIRST(IS_GONE) }
    fail(REMOTE)
#endif
#if MUTANT == 3
  :: atomic { UNDECIDED && ANY(HIT_MORE) -> blame = FIRST(HIT_MORE) }
    fail(MISMATCH)
#elif MUTANT != 10
  :: atomic { UNDECIDED && ANY(HIT_MORE) && ALL(IS_OBSERVED) -> blame = FIRST(HIT_MORE) }
    fail(MISMATCH)
#endif
#if ABORTS > 0 && MUTANT != 13
  :: atomic { UNDECIDED && aborted -> blame = aborted - 1 }
    fail(ABORTED)
#endif
#if DEADLINES > 0
  :: atomic { UNDECIDED && deadlines > 0 -> deadlines-- }
    outOfTime()
#endif
  od
}

/* Between two rounds a transfer may wait, and its trouble ends the next round before this rank has posted in it. */
inline idle() {
  if
  :: skip
#if DEATHS > 0 && MUTANT != 7
  :: atomic { UNDECIDED && ANY(IS_GONE) -> blame = FIRST(IS_GONE) }
    fail(REMOTE)
#endif
#if ABORTS > 0 && MUTANT != 13
  :: atomic { UNDECIDED && aborted -> blame = aborted - 1 }
    fail(ABORTED)
#endif
#if DEADLINES > 0
  :: atomic { UNDECIDED && deadlines > 0 -> deadlines--; blame = (me + 1) % N }
    fail(TIMEOUT)
#endif
  fi
}

/* What ends a call before it begins: the word of its round; an abort, which is written there. */
inline before() {
#if ABORTS > 0 && MUTANT != 13
  if
#if MUTANT == 15
  :: aborted -> out = WORD(k, ABORTED, aborted - 1); goto observed
#else
  :: atomic { aborted -> blame = aborted - 1 }
    fail(ABORTED)
#endif
  :: else
  fi;
#endif
  atomic {
    out = decision[PARITY(k)];
    if
    :: FAILED(out, k) -> goto observed
    :: else -> out = 0
    fi
  }
}

/* A call that waits: round k. */
inline call() {
#if MUTANT == 14
  ALL(IS_OBSERVED);
#endif
  before();
#if MUTANT == 12
  record[RECORD(k, me)] = k * 4;
#else
  record[RECORD(k, me)] = k * 4 + hits;
#endif
#if MUTANT == 2
  completeIfAllPosted();
  posted[POST(k, me)] = k;
#else
  posted[POST(k, me)] = k;
  completeIfAllPosted();
#endif
  waitForDecision()
}

/* A call that posts and does not wait. It belongs to the next round to be decided. */
inline hit() {
#if MUTANT == 9
  out = decision[PARITY(k)];
#else
  before();
#endif
  d_step {
    assert(!FAILED(out, k)); /* a failure is delivered at the next call, whichever it is */
    out = 0;
    hits++;
    lane[me] = lane[me] + 1
  }
}

/* What no rank reads again is forgotten: states that differ only in their past are one state. */
inline forget() {
  verdict[k] = 0;
  chosen[k] = 0;
  concluded[k] = 0;
  for (blame : 0 .. N - 1) { record[RECORD(k, blame)] = 0 }
  blame = 0
}

/* The lane shows that round k is final for this rank, and that it needs the word no more. */
inline observe() {
#if MUTANT == 11
  lane[me] = k * 4 + hits
#else
  lane[me] = k * 4
#endif
}

/* The outcome of round k is `out`, and where the round is complete a pure function of the records. */
inline conclude() {
  d_step {
    if
    :: STATE(out) == COMPLETE ->
      assert(ALL(IS_INTACT));
      if
      :: ANY(DIFFERS) -> out = WORD(k, MISMATCH, FIRST(DIFFERS))
      :: else
      fi
    :: else
    fi;
    assert(verdict[k] == 0 || verdict[k] == out);
    verdict[k] = out;
    assert(STATE(out) != COMPLETE || (chosen[k] & (chosen[k] - 1)) == 0);
    assert(STATE(out) != MISMATCH || (chosen[k] & (chosen[k] - 1)) != 0);
    concluded[k] = concluded[k] | (1 << me);
    if
    :: concluded[k] == (1 << N) - 1 -> forget()
    :: else
    fi;
    if
    :: STICKY(out) -> k = K + 1
    :: else -> k++
    fi;
    hits = 0;
    wanted = 0;
    out = 0
  }
}

#ifdef SILENT
#define LEAST_HITS (k == K && me == 0 -> 1 : 0)
#define MOST_HITS (k == K -> (me == 0 -> 1 : 0) : (me < HITTERS -> HITS : 0))
#else
#define LEAST_HITS 0
#define MOST_HITS (me < HITTERS -> HITS : 0)
#endif

/* The program of a rank: before round k it hits as often as it likes, then calls. After a mismatch it goes on to the
 * next round, as a caller does who gives up the step in which the ranks went apart. */
inline program() {
  do
  :: k > K || aborted == me + 1 -> break
  :: else ->
    atomic {
      select(wanted : LEAST_HITS .. MOST_HITS);
      chosen[k] = chosen[k] | (1 << wanted)
    }
    do
    :: hits < wanted -> hit()
    :: else -> break
    od;
#ifdef SILENT
    if
    :: k == K && me == 0 -> break
    :: else
    fi;
#endif
    idle();
    call();
observed:
    observe();
    conclude()
  od
}

proctype Rank(byte me) {
  byte k = 1, hits, wanted, out, blame;
#if DEATHS > 0
  { program() } unless { IS_DEAD(me) }
#else
  program()
#endif
}

#if DEATHS > 0
proctype Reaper() {
  byte r, n;
  do
  :: n < DEATHS -> n++; select(r : 0 .. N - 1); dead = dead | (1 << r)
  :: break
  od
}
#endif

#if ABORTS > 0
proctype Aborter() {
  byte r;
  if
  :: select(r : 0 .. N - 1); aborted = r + 1
  :: skip
  fi
}
#endif

init {
  byte r;
  atomic {
    for (r : 0 .. N - 1) { run Rank(r) }
#if DEATHS > 0
    run Reaper();
#endif
#if ABORTS > 0
    run Aborter();
#endif
  }
}
