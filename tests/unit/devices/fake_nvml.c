/* A fake libnvidia-ml.so.1: says what the file named by FAKE_NVML_STATE says, read anew at each call.

   Lines, of fields separated by '|':
     driver|550.54.15         init|18 (an error of nvmlInit)     hang|init (or hang|read)     crash|init
     gpu|UUID|00000000:3B:00.0|NAME|key=value|...                proc|UUID|PID|MIB            draw|UUID|PID|MIB
     xid|UUID|79  (each line is one event, told once)

   What it lacks, nvidia-ml-py reports as "function not found", as with an old driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15 };
#define LINES 64
static char text[LINES][512];
static char *field[LINES][24];
static int count, fields[LINES], xids_told;

static void look(void) {
    FILE *file = fopen(getenv("FAKE_NVML_STATE"), "r");
    count = 0;
    while (file && count < LINES && fgets(text[count], sizeof text[count], file)) {
        char *rest = text[count];
        rest[strcspn(rest, "\n")] = 0;
        for (fields[count] = 0; rest && fields[count] < 24;) field[count][fields[count]++] = strsep(&rest, "|");
        if (fields[count] > 1) count++;
    }
    if (file) fclose(file);
}
static const char *one(const char *kind) {
    for (int i = 0; i < count; i++) if (!strcmp(field[i][0], kind)) return field[i][1];
    return "";
}
/* Handles are the GPUs' names, kept for good: a GPU may go and come back. */
static char *handle_of(const char *uuid) {
    static char *known[LINES];
    int i = 0;
    for (; known[i]; i++) if (!strcmp(known[i], uuid)) return known[i];
    return known[i] = strdup(uuid);
}
static int line_of(const char *uuid) {
    look();
    for (int i = 0; i < count; i++) if (!strcmp(field[i][0], "gpu") && !strcmp(field[i][1], uuid)) return i;
    return -1;
}
/* The number of `key=`; -1: it has none, which counts as not supported. */
static long number(const char *uuid, const char *key) {
    int line = line_of(uuid);
    size_t length = strlen(key);
    for (int i = 4; line >= 0 && i < fields[line]; i++)
        if (!strncmp(field[line][i], key, length) && field[line][i][length] == '=') return atol(field[line][i] + length + 1);
    return -1;
}
static int state(const char *uuid) {
    if (line_of(uuid) < 0 || number(uuid, "lost") > 0) return LOST;
    return OK;
}
static int get(const char *uuid, const char *key, unsigned *value) {
    long found = number(uuid, key);
    if (state(uuid)) return state(uuid);
    if (found < 0) return NOT_SUPPORTED;
    *value = (unsigned)found;
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    look();
    if (!strcmp(one("hang"), "init")) for (;;) sleep(60);
    if (!strcmp(one("crash"), "init")) abort();
    printf("a line of the driver's own\n");
    fflush(stdout);
    return atoi(one("init"));
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int number) { (void)number; return "an error of the fake"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { look(); snprintf(out, size, "%s", one("driver")); return OK; }
int nvmlDeviceGetCount_v2(unsigned *out) {
    look();
    *out = 0;
    for (int i = 0; i < count; i++) *out += !strcmp(field[i][0], "gpu");
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, char **out) {
    look();
    for (int i = 0; i < count; i++)
        if (!strcmp(field[i][0], "gpu") && !index--) { *out = handle_of(field[i][1]); return state(*out); }
    return INVALID;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, char **out) {
    *out = handle_of(uuid);
    return line_of(uuid) < 0 ? NOT_FOUND : state(uuid);
}
int nvmlDeviceGetUUID(const char *gpu, char *out, unsigned size) { snprintf(out, size, "%s", gpu); return state(gpu); }
int nvmlDeviceGetName(const char *gpu, char *out, unsigned size) {
    int line = line_of(gpu);
    if (line >= 0) snprintf(out, size, "%s", field[line][3]);
    return state(gpu);
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(const char *gpu, struct pci *out) {
    int line = line_of(gpu);
    memset(out, 0, sizeof *out);
    if (line >= 0) snprintf(out->bus_id, sizeof out->bus_id, "%s", field[line][2]);
    return state(gpu);
}
struct memory { unsigned version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(const char *gpu, struct memory *out) {
    unsigned total = 0, used = 0;
    get(gpu, "used", &used);
    out->total = (u64)(get(gpu, "mib", &total) ? 0 : total) << 20;
    out->used = (u64)used << 20;
    return state(gpu);
}
int nvmlDeviceGetMigMode(const char *gpu, unsigned *now, unsigned *pending) { *pending = 0; return get(gpu, "mig", now); }
int nvmlDeviceGetComputeMode(const char *gpu, unsigned *out) { return get(gpu, "mode", out); }
int nvmlDeviceGetMinorNumber(const char *gpu, unsigned *out) { return get(gpu, "minor", out); }
int nvmlDeviceGetNvLinkState(const char *gpu, unsigned link, unsigned *out) {
    int result = get(gpu, "nvlinks", out);
    if (result) return result;
    if (link >= 18) return INVALID;
    *out = link < *out;
    return OK;
}
int nvmlDeviceGetNvLinkVersion(const char *gpu, unsigned link, unsigned *out) { (void)link; return get(gpu, "nvlink", out); }
int nvmlDeviceGetMaxPcieLinkGeneration(const char *gpu, unsigned *out) { return get(gpu, "pcie", out); }
int nvmlDeviceGetMaxPcieLinkWidth(const char *gpu, unsigned *out) { return get(gpu, "lanes", out); }
int nvmlDeviceGetMemoryBusWidth(const char *gpu, unsigned *out) { return get(gpu, "width", out); }
int nvmlDeviceGetMaxClockInfo(const char *gpu, int type, unsigned *out) { (void)type; return get(gpu, "clock", out); }
int nvmlDeviceGetPowerManagementDefaultLimit(const char *gpu, unsigned *out) { return get(gpu, "limit", out); }
int nvmlDeviceGetTemperatureThreshold(const char *gpu, int type, unsigned *out) {
    return type == 1 ? get(gpu, "slowdown", out) : NOT_SUPPORTED;
}
int nvmlDeviceGetUtilizationRates(const char *gpu, unsigned out[2]) {
    look();
    if (!strcmp(one("hang"), "read")) for (;;) sleep(60);
    int result = get(gpu, "busy", &out[0]);
    return result ? result : get(gpu, "memory_busy", &out[1]);
}
int nvmlDeviceGetTemperature(const char *gpu, int sensor, unsigned *out) { (void)sensor; return get(gpu, "temperature", out); }
int nvmlDeviceGetPowerUsage(const char *gpu, unsigned *out) { return get(gpu, "power", out); }
int nvmlDeviceGetTotalEccErrors(const char *gpu, int error, int counter, u64 *out) {
    unsigned value = 0;
    int result = error == 1 && counter == 0 ? get(gpu, "ecc", &value) : NOT_SUPPORTED;
    *out = value;
    return result;
}
int nvmlDeviceGetRemappedRows(const char *gpu, unsigned *corrected, unsigned *not_corrected, unsigned *pending, unsigned *failed) {
    *corrected = *not_corrected = *failed = 0;
    return get(gpu, "remap", pending);
}
struct process { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; };
static int processes(const char *kind, const char *gpu, unsigned *size, struct process *out) {
    unsigned room = *size;
    look();
    *size = 0;
    for (int i = 0; i < count; i++)
        if (!strcmp(field[i][0], kind) && !strcmp(field[i][1], gpu)) {
            if (*size < room) out[*size] = (struct process){(unsigned)atoi(field[i][2]), (u64)atol(field[i][3]) << 20, 0, 0};
            ++*size;
        }
    if (state(gpu)) return state(gpu);
    return *size > room ? TOO_SMALL : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(const char *gpu, unsigned *size, struct process *out) {
    return processes("proc", gpu, size, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(const char *gpu, unsigned *size, struct process *out) {
    return processes("draw", gpu, size, out);
}
int nvmlEventSetCreate(void **out) { static int set; *out = &set; return OK; }
int nvmlDeviceRegisterEvents(const char *gpu, u64 types, void *set) { (void)types; (void)set; return state(gpu); }
struct event { char *gpu; u64 type, data; unsigned gpu_instance, compute_instance; };
int nvmlEventSetWait_v2(void *set, struct event *out, unsigned timeout_ms) {
    int seen = 0;
    (void)set; (void)timeout_ms;
    look();
    for (int i = 0; i < count; i++)
        if (!strcmp(field[i][0], "xid") && seen++ == xids_told) {
            xids_told++;
            *out = (struct event){handle_of(field[i][1]), 8, (u64)atol(field[i][2]), 0, 0};
            return OK;
        }
    return TIMEOUT;
}
