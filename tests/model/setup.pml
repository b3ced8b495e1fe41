/* Staged setup, use and teardown of window memory: N ranks, ATTEMPTS times. What it says and leaves out: README.md.
 *
 * case two:   -DN=2 -DATTEMPTS=3
 * case three: -DN=3 -DATTEMPTS=2
 *
 * mutant 1 two: a rank follows its own outcome of a stage, not the agreed one
 * mutant 2 two: owners free without waiting for their peers to unmap
 * mutant 3 two: a failure to open does not undo the stages before it
 * mutant 4 two: a rank whose part of a stage failed returns without posting
 * mutant 5 two: a rank unmaps without draining its stream
 * mutant 6 two: a failure to open leaves open what was opened
 * mutant 7 two: released memory is freed at the first collective call after its release
 * mutant 8 two: memory is opened before all have agreed that it is shared
 */
#ifndef MUTANT
#define MUTANT 0
#endif

/* The stages, each agreed before the next begins. */
#define CAPABILITY 1
#define ALLOCATE 2
#define SHARE 3
#define OPEN 4
#define COMMIT 5

/* What each rank holds. */
bool allocated[N];
bool shared[N];
bool mapped[N * N]; /* (rank, peer): the rank has the peer's memory mapped */
bool writing[N];    /* a kernel of the rank may still write to what it has mapped */

/* Agreement, as agreement.pml has it: per parity and rank the record of the round last posted: the round, whether the
 * rank's own memory was released before it, and whether the rank's part went well. */
byte vote[2 * N];
#define VOTE(r) vote[(round % 2) * N + (r)]
#define HAS_VOTED(r) (VOTE(r) / 4 == round)
#define HAS_RELEASED(r) ((VOTE(r) / 2) % 2)
#define IS_GOOD(r) (VOTE(r) % 2)

/* What is checked: how a setup ended, by the parity of the attempt; 0 not known, 1 fused, 2 fallback. */
byte outcome[2];

#define UNMAPPED_BY(r) (!mapped[(r) * N + me])
#define NOTHING_OF(r) (!mapped[me * N + (r)])
#if N == 3
#define ALL(c) (c(0) && c(1) && c(2))
#else
#define ALL(c) (c(0) && c(1))
#endif

/* All ranks' parts went well, or the step is undone by all. */
inline agree() {
  round++;
#if MUTANT == 4
  good -> VOTE(me) = round * 4 + released * 2 + good;
#else
  VOTE(me) = round * 4 + released * 2 + good;
#endif
  atomic {
    ALL(HAS_VOTED);
#if MUTANT != 1
    good = ALL(IS_GOOD)
#endif
  }
}

/* Any rank may fail to open any peer's memory. */
inline openPeers() {
  for (q : 0 .. N - 1) {
    if
    :: q == me
    :: q != me && good ->
      if
      :: d_step { assert(shared[q]); mapped[me * N + q] = true }
      :: good = false
      fi
    :: q != me && !good
    fi
  }
  q = 0
}

inline stageWork() {
  if
  :: good = false
  :: stage == ALLOCATE -> allocated[me] = true
  :: stage == SHARE -> shared[me] = true
  :: stage == OPEN -> openPeers()
  :: stage == CAPABILITY || stage == COMMIT
  fi
}

inline setUp() {
  d_step {
    assert(!allocated[me] && !shared[me] && ALL(NOTHING_OF));
    good = true
  }
  for (stage : CAPABILITY .. COMMIT) {
    stageWork();
#if MUTANT == 8
    if
    :: stage == SHARE && good
    :: else -> agree()
    fi;
#else
    agree();
#endif
    if
    :: !good -> break
    :: else
    fi
  }
  atomic {
    assert(outcome[attempt % 2] == 0 || outcome[attempt % 2] == (good -> 1 : 2));
    outcome[attempt % 2] = (good -> 1 : 2);
    outcome[(attempt + 1) % 2] = 0
  }
}

inline drain() {
#if MUTANT != 5
  !writing[me]
#else
  skip
#endif
}

inline unmap(r) {
  d_step {
    assert(NOTHING_OF(r) || !writing[me]);
    mapped[me * N + (r)] = false
  }
}

inline freeOwn() {
  d_step {
    assert(ALL(UNMAPPED_BY));
    shared[me] = false;
    allocated[me] = false
  }
}

/* A collective call after which peers have unmapped what was released before it. */
inline unmapReleased() {
  agree();
  drain();
  for (q : 0 .. N - 1) {
    if
    :: HAS_RELEASED(q) -> unmap(q)
    :: else
    fi
  }
  q = 0
}

/* Kernels write to the peers; the caller may give the memory back (local), and two more collective calls follow. */
inline use() {
  writing[me] = true;
  if
  :: released = true
  :: skip
  fi;
  unmapReleased();
#if MUTANT == 7
  if
  :: released -> freeOwn()
  :: else
  fi;
  agree();
#else
  agree();
  if
  :: released -> freeOwn()
  :: else
  fi;
#endif
  released = false
}

/* After a failure at any stage and at the end: whatever of it exists goes, mappings first, on every rank. */
inline tearDown() {
  drain();
#if MUTANT == 6
  for (q : 0 .. (stage == OPEN -> 0 : N) - 1) { unmap(q) }
#else
  for (q : 0 .. N - 1) { unmap(q) }
#endif
  q = 0;
  good = true;
#if MUTANT != 2
  agree();
#endif
#if MUTANT == 3
  if
  :: stage == OPEN
  :: else -> freeOwn()
  fi
#else
  freeOwn()
#endif
}

proctype Rank(byte me) {
  byte attempt, stage, round, q;
  bool good, released;
  for (attempt : 1 .. ATTEMPTS) {
    setUp();
    if
    :: good -> use()
    :: else
    fi;
    tearDown()
  }
}

/* The stream of a rank: a kernel ends some time after its launch. */
proctype Stream(byte me) {
end:
  do
  :: writing[me] -> writing[me] = false
  od
}

init {
  byte r;
  atomic {
    for (r : 0 .. N - 1) { run Rank(r); run Stream(r) }
  }
}
