/* cuDNN's recurrent layers (LSTM, GRU), with the functions from version 8 on and the older ones. Only their memory
   sizes are computed. A layer succeeds at once and does nothing. */
#include "cudnn.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BAD_PARAM = 3 };

typedef struct {
  int algorithm, cell, bias, is_bidirectional, input_mode, type, precision, math_type;
  int32_t input, hidden, projected, layers;
  void *dropout;
  uint32_t flags;
} Layer;

typedef struct {
  size_t steps, batch;
} Data;

static size_t element_bytes(int type) {
  return type == 1 ? 8 : type == 2 ? 2 : 4; /* double, half; else float or a later type */
}

static size_t gates(const Layer *layer) {
  static const size_t by_cell[] = {1, 1, 4, 3}; /* ReLU, tanh, LSTM, GRU */
  return by_cell[layer->cell & 3];
}

static size_t directions(const Layer *layer) {
  return layer->is_bidirectional ? 2 : 1;
}

static size_t input_width(const Layer *layer, size_t below) {
  return below ? layer->hidden * directions(layer) : (size_t)layer->input;
}

static size_t biases(const Layer *layer) {
  static const size_t by_mode[] = {0, 1, 2, 1};
  return by_mode[layer->bias & 3];
}

/* Count the weights before a place. A place is one direction of a layer; it has, for each gate, a matrix for the input,
   a matrix for the state, and biases. */
static size_t numbers_before(const Layer *layer, size_t place) {
  size_t hidden = layer->hidden, numbers = 0;
  for (size_t each = 0; each < place; each++) {
    size_t input = input_width(layer, each / directions(layer));
    numbers += gates(layer) * hidden * (input + hidden + biases(layer));
  }
  return numbers;
}

static size_t weight_bytes(const Layer *layer) {
  return numbers_before(layer, layer->layers * directions(layer)) * element_bytes(layer->type);
}

/* Memory in which training keeps every gate of every step, from the forward to the backward pass. */
static size_t reserve_bytes(const Layer *layer, size_t steps, size_t batch) {
  return steps * batch * layer->layers * directions(layer) * gates(layer) * layer->hidden * element_bytes(layer->type);
}

/* ---- descriptors ---- */

#define KEPT_DESCRIPTOR(kind, type)                            \
  API Status cudnnCreate##kind##Descriptor(type **descriptor) { \
    *descriptor = calloc(1, sizeof **descriptor);               \
    return 0;                                                   \
  }                                                             \
  API Status cudnnDestroy##kind##Descriptor(type *descriptor) { \
    free(descriptor);                                           \
    return 0;                                                   \
  }

KEPT_DESCRIPTOR(RNN, Layer)
KEPT_DESCRIPTOR(RNNData, Data)

API Status cudnnSetRNNDataDescriptor(Data *data, int type, int layout, int steps, int batch, int width,
                                     const int lengths[], void *fill) {
  if (steps <= 0 || batch <= 0) return BAD_PARAM;
  *data = (Data){steps, batch};
  return 0;
}

API Status cudnnSetRNNDescriptor_v8(Layer *layer, int algorithm, int cell, int bias, int is_bidirectional,
                                    int input_mode, int type, int precision, int math_type, int32_t input,
                                    int32_t hidden, int32_t projected, int32_t layers, void *dropout,
                                    uint32_t flags) {
  if (input <= 0 || hidden <= 0 || layers <= 0) return BAD_PARAM;
  *layer = (Layer){algorithm, cell,  bias,   is_bidirectional, input_mode, type,    precision,
                   math_type, input, hidden, projected,        layers,     dropout, flags};
  return 0;
}

/* Callers pass NULL for values that they do not need. */
#define TELL(target, value) \
  if (target) *(target) = (value)

API Status cudnnGetRNNDescriptor_v8(Layer *layer, int *algorithm, int *cell, int *bias, int *is_bidirectional,
                                    int *input_mode, int *type, int *precision, int *math_type, int32_t *input,
                                    int32_t *hidden, int32_t *projected, int32_t *layers, void **dropout,
                                    uint32_t *flags) {
  TELL(algorithm, layer->algorithm);
  TELL(cell, layer->cell);
  TELL(bias, layer->bias);
  TELL(is_bidirectional, layer->is_bidirectional);
  TELL(input_mode, layer->input_mode);
  TELL(type, layer->type);
  TELL(precision, layer->precision);
  TELL(math_type, layer->math_type);
  TELL(input, layer->input);
  TELL(hidden, layer->hidden);
  TELL(projected, layer->projected);
  TELL(layers, layer->layers);
  TELL(dropout, layer->dropout);
  TELL(flags, layer->flags);
  return 0;
}

/* Before version 8 each call had the input's width. We assume that it is the width of the state. */
API Status cudnnSetRNNDescriptor_v6(void *handle, Layer *layer, int hidden, int layers, void *dropout,
                                    int input_mode, int is_bidirectional, int cell, int algorithm, int type) {
  return cudnnSetRNNDescriptor_v8(layer, algorithm, cell, 2, is_bidirectional, input_mode, type, type, 0, hidden,
                                  hidden, hidden, layers, dropout, 0);
}

API Status cudnnGetRNNDescriptor_v6(void *handle, Layer *layer, int *hidden, int *layers, void **dropout,
                                    int *input_mode, int *is_bidirectional, int *cell, int *algorithm, int *type) {
  return cudnnGetRNNDescriptor_v8(layer, algorithm, cell, NULL, is_bidirectional, input_mode, type, NULL, NULL,
                                  NULL, hidden, NULL, layers, dropout, NULL);
}

DESCRIPTOR(Dropout)
SUCCEED(cudnnSetRNNMatrixMathType)
SUCCEED(cudnnSetRNNPaddingMode)
SUCCEED(cudnnSetRNNBiasMode)
SUCCEED(cudnnSetRNNProjectionLayers)
SUCCEED(cudnnSetRNNAlgorithmDescriptor)
SUCCEED(cudnnSetDropoutDescriptor)
SUCCEED(cudnnRestoreDropoutDescriptor)

API Status cudnnDropoutGetStatesSize(void *handle, size_t *bytes) {
  *bytes = 256;
  return 0;
}

/* Return the sizes that were set for a weight. For any other tensor they are unknown, and we return one number. */
API Status cudnnGetTensorNdDescriptor(TensorDescriptor *descriptor, int wanted, int *type, int *dimensions,
                                      int sizes[], int strides[]) {
  *type = 0;
  *dimensions = 3;
  for (int i = 2, stride = 1; i >= 0; i--) {
    sizes[i] = descriptor->sizes[i] ? descriptor->sizes[i] : 1;
    strides[i] = stride;
    stride *= sizes[i];
  }
  return 0;
}

API Status cudnnGetFilterNdDescriptor(void *descriptor, int wanted, int *type, int *format, int *dimensions,
                                      int sizes[]) {
  *type = *format = 0;
  *dimensions = 3;
  for (int i = 0; i < 3; i++) sizes[i] = 1;
  return 0;
}

/* ---- version 8 and later ---- */

API Status cudnnGetRNNWeightSpaceSize(void *handle, Layer *layer, size_t *bytes) {
  *bytes = weight_bytes(layer);
  return 0;
}

/* PyTorch requires that the gates of one kind of matrix are adjacent. It asks for each matrix and bias separately. */
API Status cudnnGetRNNWeightParams(void *handle, Layer *layer, int32_t place, size_t bytes, char *weights,
                                   int32_t matrix, TensorDescriptor *matrix_descriptor, void **matrix_address,
                                   TensorDescriptor *bias_descriptor, void **bias_address) {
  size_t count = gates(layer), hidden = layer->hidden;
  size_t input = input_width(layer, place / directions(layer));
  bool is_for_state = (size_t)matrix >= count;
  size_t gate = matrix % count, width = is_for_state ? hidden : input;
  size_t start = numbers_before(layer, place);
  size_t before = start + (is_for_state ? count * hidden * input : 0) + gate * hidden * width;
  size_t before_bias = start + count * hidden * (input + hidden) + (is_for_state ? count * hidden : 0) + gate * hidden;
  TELL(matrix_address, weights + before * element_bytes(layer->type));
  TELL(bias_address, weights + before_bias * element_bytes(layer->type));
  if (matrix_descriptor) *matrix_descriptor = (TensorDescriptor){{1, layer->hidden, (int)width}};
  if (bias_descriptor) *bias_descriptor = (TensorDescriptor){{1, layer->hidden, 1}};
  return 0;
}

API Status cudnnGetRNNTempSpaceSizes(void *handle, Layer *layer, int mode, Data *input, size_t *workspace,
                                     size_t *reserve) {
  TELL(workspace, 0);
  TELL(reserve, reserve_bytes(layer, input->steps, input->batch));
  return 0;
}

SUCCEED(cudnnRNNForward)
SUCCEED(cudnnRNNBackwardData_v8)
SUCCEED(cudnnRNNBackwardWeights_v8)

/* ---- before version 8 ---- */

API Status cudnnGetRNNParamsSize(void *handle, Layer *layer, void *input, size_t *bytes, int type) {
  *bytes = weight_bytes(layer);
  return 0;
}

#define ONE_BY_ONE(what)                                                                                            \
  API Status cudnnGetRNNLinLayer##what##Params(void *handle, Layer *layer, int place, void *input, void *weights_in, \
                                               void *weights, int matrix, void *descriptor, void **address) {       \
    *address = weights;                                                                                             \
    return 0;                                                                                                       \
  }

ONE_BY_ONE(Matrix)
ONE_BY_ONE(Bias)

API Status cudnnGetRNNWorkspaceSize(void *handle, Layer *layer, int steps, void *inputs, size_t *bytes) {
  *bytes = 0;
  return 0;
}

API Status cudnnGetRNNTrainingReserveSize(void *handle, Layer *layer, int steps, void *inputs, size_t *bytes) {
  *bytes = reserve_bytes(layer, steps, 1); /* the batch size is in the tensors' descriptors, which are not read */
  return 0;
}

API Status cudnnGetRNNProjectionLayers(void *handle, Layer *layer, int *projected, int *output) {
  *projected = layer->projected;
  *output = 0;
  return 0;
}

SUCCEED(cudnnRNNForwardInference)
SUCCEED(cudnnRNNForwardInferenceEx)
SUCCEED(cudnnRNNForwardTraining)
SUCCEED(cudnnRNNForwardTrainingEx)
SUCCEED(cudnnRNNBackwardData)
SUCCEED(cudnnRNNBackwardDataEx)
SUCCEED(cudnnRNNBackwardWeights)
SUCCEED(cudnnRNNBackwardWeightsEx)
