/* The frozen binary interface of 64-bit Linux: compiling this file is the test. A failed line is an array of size -1,
   named after what moved. Add lines for what is added; never change one. */
#include <ulysses/ulysses.h>

#define CHECK_AS(name, condition) typedef char name[(condition) ? 1 : -1]
#define SIZE(type, bytes) CHECK_AS(size_of_##type, sizeof(type) == (bytes))
#define OFFSET(type, field, bytes) CHECK_AS(offset_of_##type##_##field, offsetof(type, field) == (bytes))
#define VALUE(name, value) CHECK_AS(value_of_##name, (name) == (value))

CHECK_AS(lp64, sizeof(void*) == 8 && sizeof(size_t) == 8 && sizeof(int) == 4);

SIZE(ulyssesComm_t, 8);
SIZE(ulyssesPlan_t, 8);
SIZE(ulyssesParamComm_t, 8);
SIZE(ulyssesWindow_t, 8);
SIZE(ulyssesStream_t, 8);
SIZE(ulyssesResult_t, 4);
SIZE(ulyssesDataType_t, 4);
SIZE(ulyssesDirection_t, 4);
SIZE(ulyssesMemory_t, 4);
SIZE(ulyssesResidency_t, 4);

SIZE(ulyssesUniqueId, 128);

SIZE(ulyssesConfig_t, 48);
OFFSET(ulyssesConfig_t, size, 0);
OFFSET(ulyssesConfig_t, magic, 8);
OFFSET(ulyssesConfig_t, version, 12);
OFFSET(ulyssesConfig_t, memory, 16);
OFFSET(ulyssesConfig_t, maxCtas, 20);
OFFSET(ulyssesConfig_t, windowCapBytes, 24);
OFFSET(ulyssesConfig_t, timeoutMs, 32);
OFFSET(ulyssesConfig_t, reserved, 36);
OFFSET(ulyssesConfig_t, commName, 40);

SIZE(ulyssesOob_t, 24);
OFFSET(ulyssesOob_t, rank, 0);
OFFSET(ulyssesOob_t, nranks, 4);
OFFSET(ulyssesOob_t, context, 8);
OFFSET(ulyssesOob_t, allgather, 16);

SIZE(ulyssesCommInfo_t, 352);
OFFSET(ulyssesCommInfo_t, size, 0);
OFFSET(ulyssesCommInfo_t, magic, 8);
OFFSET(ulyssesCommInfo_t, version, 12);
OFFSET(ulyssesCommInfo_t, memory, 16);
OFFSET(ulyssesCommInfo_t, nRanks, 20);
OFFSET(ulyssesCommInfo_t, nHosts, 24);
OFFSET(ulyssesCommInfo_t, singleHost, 28);
OFFSET(ulyssesCommInfo_t, lsa, 32);
OFFSET(ulyssesCommInfo_t, ranksPerDevice, 36);
OFFSET(ulyssesCommInfo_t, ncclVersion, 40);
OFFSET(ulyssesCommInfo_t, windowBytes, 48);
OFFSET(ulyssesCommInfo_t, windowCapBytes, 56);
OFFSET(ulyssesCommInfo_t, fusedCalls, 64);
OFFSET(ulyssesCommInfo_t, fallbackCalls, 72);
OFFSET(ulyssesCommInfo_t, lastPath, 80);
OFFSET(ulyssesCommInfo_t, lastReason, 96);

SIZE(ulyssesA2ADesc_t, 152);
OFFSET(ulyssesA2ADesc_t, size, 0);
OFFSET(ulyssesA2ADesc_t, magic, 8);
OFFSET(ulyssesA2ADesc_t, version, 12);
OFFSET(ulyssesA2ADesc_t, batch, 16);
OFFSET(ulyssesA2ADesc_t, seq, 24);
OFFSET(ulyssesA2ADesc_t, heads, 32);
OFFSET(ulyssesA2ADesc_t, headDim, 40);
OFFSET(ulyssesA2ADesc_t, dtype, 48);
OFFSET(ulyssesA2ADesc_t, direction, 52);
OFFSET(ulyssesA2ADesc_t, seqSplits, 56);
OFFSET(ulyssesA2ADesc_t, headSplits, 64);
OFFSET(ulyssesA2ADesc_t, inStride, 72);
OFFSET(ulyssesA2ADesc_t, outStride, 96);
OFFSET(ulyssesA2ADesc_t, replicateHeads, 120);
OFFSET(ulyssesA2ADesc_t, headGroups, 128);
OFFSET(ulyssesA2ADesc_t, boundOut, 136);
OFFSET(ulyssesA2ADesc_t, gradTracked, 144);

SIZE(ulyssesPlanInfo_t, 320);
OFFSET(ulyssesPlanInfo_t, size, 0);
OFFSET(ulyssesPlanInfo_t, magic, 8);
OFFSET(ulyssesPlanInfo_t, version, 12);
OFFSET(ulyssesPlanInfo_t, path, 16);
OFFSET(ulyssesPlanInfo_t, reason, 32);
OFFSET(ulyssesPlanInfo_t, planeBytes, 288);
OFFSET(ulyssesPlanInfo_t, chunkBytes, 296);
OFFSET(ulyssesPlanInfo_t, windowBytes, 304);
OFFSET(ulyssesPlanInfo_t, chunks, 312);
OFFSET(ulyssesPlanInfo_t, ctas, 316);

SIZE(ulyssesParamDesc_t, 56);
OFFSET(ulyssesParamDesc_t, size, 0);
OFFSET(ulyssesParamDesc_t, magic, 8);
OFFSET(ulyssesParamDesc_t, version, 12);
OFFSET(ulyssesParamDesc_t, count, 16);
OFFSET(ulyssesParamDesc_t, shardType, 24);
OFFSET(ulyssesParamDesc_t, gatherType, 28);
OFFSET(ulyssesParamDesc_t, splits, 32);
OFFSET(ulyssesParamDesc_t, shard, 40);
OFFSET(ulyssesParamDesc_t, alignment, 48);

SIZE(ulyssesParamConfig_t, 32);
OFFSET(ulyssesParamConfig_t, size, 0);
OFFSET(ulyssesParamConfig_t, magic, 8);
OFFSET(ulyssesParamConfig_t, version, 12);
OFFSET(ulyssesParamConfig_t, residency, 16);
OFFSET(ulyssesParamConfig_t, prefetchDepth, 20);
OFFSET(ulyssesParamConfig_t, budgetBytes, 24);

SIZE(ulyssesParamStats_t, 80);
OFFSET(ulyssesParamStats_t, size, 0);
OFFSET(ulyssesParamStats_t, magic, 8);
OFFSET(ulyssesParamStats_t, version, 12);
OFFSET(ulyssesParamStats_t, acquires, 16);
OFFSET(ulyssesParamStats_t, hits, 24);
OFFSET(ulyssesParamStats_t, gathers, 32);
OFFSET(ulyssesParamStats_t, bytesMoved, 40);
OFFSET(ulyssesParamStats_t, evictions, 48);
OFFSET(ulyssesParamStats_t, prefetchHits, 56);
OFFSET(ulyssesParamStats_t, residentBytes, 64);
OFFSET(ulyssesParamStats_t, peakBytes, 72);

VALUE(ULYSSES_UNIQUE_ID_BYTES, 128);
VALUE(ULYSSES_MAGIC, 0x554c5953u);
VALUE(ULYSSES_SPLIT_NOCOLOR, -1);

VALUE(ulyssesSuccess, 0);
VALUE(ulyssesUnhandledCudaError, 1);
VALUE(ulyssesSystemError, 2);
VALUE(ulyssesInternalError, 3);
VALUE(ulyssesInvalidArgument, 4);
VALUE(ulyssesInvalidUsage, 5);
VALUE(ulyssesRemoteError, 6);
VALUE(ulyssesInProgress, 7);
VALUE(ulyssesTimeout, 8);
VALUE(ulyssesMismatch, 16);
VALUE(ulyssesOutOfMemory, 17);
VALUE(ulyssesNotSupported, 18);
VALUE(ulyssesInt8, 0);
VALUE(ulyssesUint8, 1);
VALUE(ulyssesInt32, 2);
VALUE(ulyssesUint32, 3);
VALUE(ulyssesInt64, 4);
VALUE(ulyssesUint64, 5);
VALUE(ulyssesFloat16, 6);
VALUE(ulyssesFloat32, 7);
VALUE(ulyssesFloat64, 8);
VALUE(ulyssesBfloat16, 9);
VALUE(ulyssesFloat8e4m3, 10);
VALUE(ulyssesFloat8e5m2, 11);
VALUE(ulyssesScatterHeads, 0);
VALUE(ulyssesGatherHeads, 1);
VALUE(ulyssesMemoryAuto, 0);
VALUE(ulyssesMemoryHost, 1);
VALUE(ulyssesMemoryCuda, 2);
VALUE(ulyssesResidencyPersistent, 0);
VALUE(ulyssesResidencyBudget, 1);
VALUE(ulyssesResidencyTransient, 2);

/* Every initializer fits its struct and is complete (-Wextra tells of a missing field). */
#define INITIALIZER(type, initializer) type initialized_##type = initializer

INITIALIZER(ulyssesConfig_t, ULYSSES_CONFIG_INITIALIZER);
INITIALIZER(ulyssesCommInfo_t, ULYSSES_COMM_INFO_INITIALIZER);
INITIALIZER(ulyssesA2ADesc_t, ULYSSES_A2A_DESC_INITIALIZER);
INITIALIZER(ulyssesPlanInfo_t, ULYSSES_PLAN_INFO_INITIALIZER);
INITIALIZER(ulyssesParamDesc_t, ULYSSES_PARAM_DESC_INITIALIZER);
INITIALIZER(ulyssesParamConfig_t, ULYSSES_PARAM_CONFIG_INITIALIZER);
INITIALIZER(ulyssesParamStats_t, ULYSSES_PARAM_STATS_INITIALIZER);
