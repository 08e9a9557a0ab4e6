/* Driver API: graphs. They are built but never run. Keras' jit_compile="auto" and JAX build graphs. */
#include "handle.h"

#include <stdlib.h>


MAKE(cuGraphCreate, void **made, unsigned flags)
MAKE(cuGraphClone, void **made, void *graph)
MAKE(cuGraphAddKernelNode_v2, void **made, void *graph, void *after, size_t count, void *parameters)
MAKE(cuGraphAddKernelNode, void **made, void *graph, void *after, size_t count, void *parameters)
MAKE(cuGraphAddMemcpyNode, void **made, void *graph, void *after, size_t count, void *parameters,
     void *context)
MAKE(cuGraphAddMemsetNode, void **made, void *graph, void *after, size_t count, void *parameters,
     void *context)
MAKE(cuGraphAddEmptyNode, void **made, void *graph, void *after, size_t count)
MAKE(cuGraphAddEventRecordNode, void **made, void *graph, void *after, size_t count, Event *event)
MAKE(cuGraphAddEventWaitNode, void **made, void *graph, void *after, size_t count, Event *event)
MAKE(cuGraphAddHostNode, void **made, void *graph, void *after, size_t count, void *parameters)
MAKE(cuGraphAddChildGraphNode, void **made, void *graph, void *after, size_t count, void *child)
MAKE(cuGraphInstantiateWithFlags, void **made, void *graph, uint64_t flags)
MAKE(cuGraphInstantiateWithParams, void **made, void *graph, void *parameters)

/* The beginning of CUgraphNodeParams. The fields after the first two depend on the type; here, a conditional node. */
typedef struct {
  int type, reserved[3];
  uint64_t condition;
  int condition_type;
  unsigned body_count;
  void **bodies;
} NodeParameters;

/* A conditional node is made together with its body graphs. */
API CUresult cuGraphAddNode(void **made, void *graph, const void *after, size_t count, NodeParameters *parameters) {
  enum { CONDITIONAL = 13 };
  NEEDS_INIT;
  *made = new_handle("node");
  if (parameters->type == CONDITIONAL) {
    parameters->bodies = calloc(parameters->body_count, sizeof *parameters->bodies);
    for (unsigned i = 0; i < parameters->body_count; i++) {
      parameters->bodies[i] = new_handle("body");
    }
  }
  return CUDA_SUCCESS;
}

API CUresult cuGraphAddNode_v2(void **made, void *graph, const void *after, const void *edges, size_t count,
                               NodeParameters *parameters) {
  return cuGraphAddNode(made, graph, after, count, parameters);
}

API CUresult cuGraphConditionalHandleCreate(uint64_t *condition, void *graph, Context *context, unsigned value,
                                            unsigned flags) {
  NEEDS_INIT;
  *condition = (uintptr_t)new_handle("condition");
  return CUDA_SUCCESS;
}

/* XLA requires at least one node in a graph. The graph itself serves as the node. */
API CUresult cuGraphGetRootNodes(void *graph, void **nodes, size_t *count) {
  NEEDS_INIT;
  if (nodes && *count) {
    nodes[0] = graph;
  }
  *count = 1;
  return CUDA_SUCCESS;
}
ALIAS(cuGraphGetNodes, cuGraphGetRootNodes);

API CUresult cuGraphNodeGetType(void *node, int *type) {
  enum { KERNEL_NODE = 0 };
  NEEDS_INIT;
  *type = KERNEL_NODE;
  return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetDependencies(void *node, void **nodes, size_t *count) {
  NEEDS_INIT;
  *count = 0;
  return CUDA_SUCCESS;
}

/* Their arguments are not used, so the prototypes leave them out. */
ACCEPT(cuGraphAddDependencies)
ACCEPT(cuGraphAddDependencies_v2)
ACCEPT(cuGraphExecKernelNodeSetParams)
ACCEPT(cuGraphExecKernelNodeSetParams_v2)
ACCEPT(cuGraphExecNodeSetParams)
ACCEPT(cuGraphNodeSetParams)
ACCEPT(cuGraphKernelNodeSetParams)
ACCEPT(cuGraphKernelNodeSetParams_v2)
ACCEPT(cuGraphExecMemcpyNodeSetParams)
ACCEPT(cuGraphExecMemsetNodeSetParams)
ACCEPT(cuGraphExecChildGraphNodeSetParams)
ACCEPT(cuGraphExecUpdate)
ACCEPT(cuGraphExecUpdate_v2)
ACCEPT(cuGraphKernelNodeSetAttribute)
ACCEPT(cuGraphNodeSetEnabled)
ACCEPT(cuGraphLaunch)
ACCEPT(cuGraphUpload)
ACCEPT(cuGraphDestroy)
ACCEPT(cuGraphExecDestroy)
ACCEPT(cuGraphDebugDotPrint)
ACCEPT(cuDeviceGraphMemTrim)
