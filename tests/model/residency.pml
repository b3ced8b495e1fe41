/* Versions and residency of parameter groups: N ranks, group 0 pinned, the others in turns in a ring of one slot. What
 * it says and leaves out: README.md.
 *
 * case cycle: -DN=2 -DSTEPS=4
 * case wide: -DN=3 -DSTEPS=2
 * case lone: -DN=2 -DLONE
 * case lonewide: -DN=3 -DLONE
 *
 * mutant 1 cycle: a publish leaves the version as it is
 * mutant 2 cycle: a prefetch takes the slot of a group that is held
 * mutant 3 cycle: a group that gives way stays resident
 * mutant 4 lone: a hit is not posted
 * mutant 5 lone: the version counts publishes, not gathers
 * mutant 6 lone: the version is resident before the ranks have agreed
 * mutant 7 lonewide: a rank that waits looks at nobody's hits
 * mutant 8 cycle: a group is dropped on its rank alone
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef STEPS
#define STEPS 1
#endif

#define G 3
#define NOBODY 255
#define ROUNDS (STEPS * 2 + 6)

/* Agreement, as agreement.pml has it, with one word a round. */
#define COMPLETE 1
#define FAILED 2
byte decision[ROUNDS];
byte posted[N];       /* the last round a rank has entered */
byte next[N];         /* the round it enters next: it has observed those before */
byte hits[N];         /* posted since */
byte record[2 * N];   /* by parity of the round: group and version, and the hits before it */
byte snapshot[2];     /* what a gather read: the content of all shards, NOBODY where they differ */

/* Of each rank and group. */
byte content[N * G];  /* of the shard */
byte version[N * G];
byte gathered[N * G]; /* of the last gather */
byte resident[N * G]; /* of the copy, 0: there is none */
byte copy[N * G];     /* the content of the copy */
byte slot[N];         /* the group in the ring */

/* The program, the same on all ranks: chosen by the first to come to a step. */
#define VISIT 1
#define PUBLISH 2
#define RESHARD 3
byte operation[STEPS + 1];
byte target[STEPS + 1];

#define AT(g) (me * G + (g))
#define K next[me]
#define IS_CURRENT(g) (resident[AT(g)] == version[AT(g)])
#define POSTED(r) (posted[r] == K)
#define HIT_INSTEAD(r) (posted[r] != K && next[r] == K && hits[r] > hits[me])
#define OBSERVED(r) (next[r] >= K)
#define SAME(r) (record[(K % 2) * N + (r)] == record[K % 2 * N])
#define READ(r) (content[(r) * G + g])
#if N == 3
#define ALL(c) (c(0) && c(1) && c(2))
#define ANY(c) (c(0) || c(1) || c(2))
#define ALIKE (READ(0) == READ(1) && READ(1) == READ(2))
#else
#define ALL(c) (c(0) && c(1))
#define ANY(c) (c(0) || c(1))
#define ALIKE (READ(0) == READ(1))
#endif

inline observe() {
  K++;
  hits[me] = 0
}

/* A call that communicates: `good` where all ranks made the same one. */
inline agree(g) {
  atomic {
    if
    :: decision[K] == FAILED
    :: else ->
      record[(K % 2) * N + me] = ((g) * 8 + version[AT(g)]) * 8 + hits[me];
      posted[me] = K;
      if
      :: ALL(POSTED) && decision[K] == 0 ->
        decision[K] = COMPLETE;
        snapshot[K % 2] = (ALIKE -> READ(0) : NOBODY)
      :: else
      fi
    fi
  }
  do
  :: atomic { decision[K] == COMPLETE -> good = ALL(SAME); observe(); break }
  :: atomic { decision[K] == FAILED -> good = false; observe(); break }
#if MUTANT != 7
  :: atomic { decision[K] == 0 && ALL(OBSERVED) && ANY(HIT_INSTEAD) -> decision[K] = FAILED }
#endif
  od
}

inline hit() {
  atomic {
    if
    :: decision[K] == FAILED -> good = false; observe()
    :: else ->
      good = true;
#if MUTANT != 4
      hits[me]++
#endif
    fi
  }
}

/* What a gather read is taken over with the word that all ranks have agreed. */
inline gather(g) {
#if MUTANT == 6
  resident[AT(g)] = version[AT(g)];
#endif
  agree(g);
  atomic {
    if
    :: good ->
      if
      :: (g) != 0 && slot[me] != NOBODY && slot[me] != (g) ->
#if MUTANT != 3
        resident[AT(slot[me])] = 0
#endif
      :: else
      fi;
      if
      :: (g) != 0 -> slot[me] = (g)
      :: else
      fi;
      gathered[AT(g)] = version[AT(g)];
      resident[AT(g)] = version[AT(g)];
      copy[AT(g)] = snapshot[(K - 1) % 2]
    :: else
    fi
  }
}

inline acquire(g) {
  if
  :: IS_CURRENT(g) -> hit()
  :: else -> gather(g)
  fi
}

/* The group after the one that is held. */
inline prefetchOther() {
  if
#if MUTANT == 2
  :: IS_CURRENT(other) -> hit()
#else
  :: IS_CURRENT(other) || (other != 0 && g != 0) -> hit() /* current; or no slot for it, on no rank */
#endif
  :: else -> gather(other)
  fi
}

inline publish(g) {
  content[AT(g)]++;
#if MUTANT == 5
  version[AT(g)]++
#elif MUTANT != 1
  version[AT(g)] = gathered[AT(g)] + 1
#endif
}

inline reshard(g) {
  resident[AT(g)] = 0;
  if
  :: slot[me] == (g) -> slot[me] = NOBODY
  :: else
  fi
}

/* All ranks make the same calls: none is refused, and every use sees what was published last. */
inline program() {
  for (step : 1 .. STEPS) {
    atomic {
      if
      :: operation[step] == 0 ->
        select(g : 0 .. G - 1);
        target[step] = g;
        if
        :: operation[step] = VISIT
        :: operation[step] = PUBLISH
        :: operation[step] = RESHARD
        fi
      :: else
      fi;
      g = target[step]
    }
    if
    :: operation[step] == VISIT ->
      acquire(g);
      assert(good && copy[AT(g)] == content[AT(g)]);
      other = (g + 1) % G;
      prefetchOther();
      assert(good && IS_CURRENT(g) && (g == 0 || slot[me] == g) && copy[AT(g)] == content[AT(g)])
    :: operation[step] == PUBLISH -> d_step { publish(g) }
    :: operation[step] == RESHARD ->
#if MUTANT == 8
      if
      :: me == 0 -> d_step { reshard(g) }
      :: else
      fi
#else
      d_step { reshard(g) }
#endif
    fi
  }
}

/* One rank publishes and the others do not: it is told at once, they by their next call, and then a publish on all
 * works. */
inline lonePublish() {
  acquire(g);
  assert(good);
  if
  :: me == loner ->
    d_step { publish(g) };
    acquire(g);
    assert(!good)
  :: else ->
    acquire(g);
    if
    :: good ->
      assert(copy[AT(g)] == 0);
      decision[K] == FAILED; /* the async error */
      acquire(g)
    :: else
    fi;
    assert(!good)
  fi;
  d_step { publish(g); content[AT(g)] = 5 };
  acquire(g);
  assert(good && copy[AT(g)] == 5);
  acquire(g);
  assert(good && copy[AT(g)] == 5)
}

byte loner;

proctype Rank(byte me) {
  byte g, step, other;
  bool good;
#ifdef LONE
  lonePublish()
#else
  program()
#endif
}

init {
  byte r;
  atomic {
#ifdef LONE
    select(loner : 0 .. N - 1);
#endif
    for (r : 0 .. N * G - 1) { version[r] = 1 }
    for (r : 0 .. N - 1) { next[r] = 1; slot[r] = NOBODY; run Rank(r) }
  }
}
