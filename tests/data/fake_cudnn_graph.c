/* A fake libcudnn_graph.so.9 for tests: it checks what the helper says, and answers by a rule that a test can repeat.
 *
 * Heuristics give three configurations: engine 7, whose plan cannot be made; engine 9, whose workspace is the number of
 * elements of the first tensor of the first operation, and one more without TF32; engine 11, compiled at run time, twice
 * that. There is no compiler here: that one's plan cannot be made, but its configuration tells its workspace.
 * Built with -DVERSION=91900, and for what may go wrong with -DCRASH, -DHANG or -DREFUSE; with -DSILENT no configuration
 * tells its workspace; with -DSTARVED=FILE its first answer takes four seconds, in which FILE says that it waited for a
 * CPU for longer.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct attribute {
    int name;
    int64_t count;
    char data[1024];
};

struct descriptor {
    int type, used, engine;
    struct attribute attributes[16];
};

size_t cudnnGetVersion(void) { return VERSION; }

static void *find(const struct descriptor *of, int name) {
    for (int i = 0; of && i < of->used; i++)
        if (of->attributes[i].name == name)
            return (void *)of->attributes[i].data;
    return NULL;
}

static struct descriptor *follow(const struct descriptor *of, int name) {
    void **value = find(of, name);
    return value ? *value : NULL;
}

int cudnnBackendCreateDescriptor(int type, struct descriptor **made) {
    *made = calloc(1, sizeof **made);
    (*made)->type = type;
    return 0;
}

int cudnnBackendDestroyDescriptor(struct descriptor *gone) {
    free(gone);
    return 0;
}

int cudnnBackendSetAttribute(struct descriptor *of, int name, int type, int64_t count, const void *values) {
    size_t bytes = (size_t)count * (type == 3 || type == 15 ? 8 : type == 24 ? 1 : 4);
    struct attribute *attribute = &of->attributes[of->used++];
    if (bytes >= sizeof attribute->data || type == 0) /* a handle: there is none */
        return 2000;
    attribute->name = name;
    attribute->count = count;
    memcpy(attribute->data, values, bytes);
    return 0;
}

static int is_the_gpu(const struct descriptor *device) {
    const char *json = find(device, 2702);
    return json && device->type == 38 && strstr(json, "\"deviceVer\":900,") && strstr(json, "\"deviceName\":\"Fake\"");
}

int cudnnBackendFinalize(struct descriptor *of) {
#ifdef CRASH
    abort();
#endif
#ifdef HANG
    sleep(60);
#endif
#ifdef STARVED
    FILE *account = fopen(STARVED, "wx");
    if (account) {
        fputs("1000 60000000000 1\n", account);
        fclose(account);
        sleep(4);
    }
#endif
    if (of->type == 38)
        return is_the_gpu(of) ? 0 : 2000;
    if (of->type == 4) {
#ifdef REFUSE
        return 3001;
#endif
        return is_the_gpu(follow(of, 204)) && follow(follow(of, 201), 801) ? 0 : 2000;
    }
    if (of->type == 5)
        return is_the_gpu(follow(of, 407)) && follow(of, 401)->engine == 9 ? 0 : 3000;
    return 0;
}

static int64_t elements(const struct descriptor *configuration) {
    const struct descriptor *heuristics = (void *)find(configuration, 0);
    int64_t *size = find(follow(follow(follow(*(struct descriptor **)heuristics, 201), 801), 701), 902);
    return size[0] * size[1] + (getenv("NVIDIA_TF32_OVERRIDE") != NULL);
}

int cudnnBackendGetAttribute(struct descriptor *of, int name, int type, int64_t wanted, int64_t *count, void *values) {
    int64_t *number = values;
    (void)type;
    *count = 1;
    if (name == 202) {
        *count = 3;
        for (int i = 0; i < wanted && i < 3; i++) {
            struct descriptor *configuration = ((struct descriptor **)values)[i];
            configuration->engine = 7 + 2 * i;
            cudnnBackendSetAttribute(configuration, 0, 15, 1, &of);
        }
    } else if (name == 300) {
        (*(struct descriptor **)values)->engine = of->engine;
    } else if (name == 1301) {
        *number = of->engine;
    } else if (name == 1303) { /* numerical notes: of engine 9, tensor cores and nondeterministic */
        *count = of->engine == 9 ? 2 : 0;
        memcpy(values, (int[]){0, 4}, 4 * (size_t)*count);
    } else if (name == 1305) { /* behavior notes: of engine 11, compiled at run time */
        *count = of->engine == 11;
        memcpy(values, (int[]){0}, 4 * (size_t)*count);
    } else if (name == 402) {
        *number = elements(follow(of, 401));
#ifndef SILENT
    } else if (name == 303) {
        *number = elements(of) * (of->engine == 11 ? 2 : 1);
#endif
    } else {
        return 2000;
    }
    return 0;
}
