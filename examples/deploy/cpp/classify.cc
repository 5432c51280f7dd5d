// Classifies an image with a model that towerpack exported, through TensorFlow's C API.
//
//   classify saved_model DIRECTORY INPUT OUTPUT IMAGE DIM...
//   classify frozen FILE.pb INPUT OUTPUT IMAGE DIM...
//
// INPUT and OUTPUT are tensors ("prob:0"): export.json beside the export names them. IMAGE is a
// file of float32 numbers, DIM its shape. Prints the five most likely classes, one to a line.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "tensorflow/c/c_api.h"

namespace {

constexpr int kTop = 5;

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "classify: %s\n", message.c_str());
  std::exit(1);
}

void Check(const TF_Status* status, const std::string& what) {
  if (TF_GetCode(status) != TF_OK) Fail(what + ": " + TF_Message(status));
}

std::vector<char> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) Fail("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TF_Session* OpenSavedModel(const char* directory, TF_Graph* graph, TF_Status* status) {
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  TF_Session* session = TF_LoadSessionFromSavedModel(options, nullptr, directory, tags, 1, graph,
                                                     nullptr, status);
  Check(status, std::string("loading ") + directory);
  TF_DeleteSessionOptions(options);
  return session;
}

TF_Session* OpenFrozenGraph(const char* path, TF_Graph* graph, TF_Status* status) {
  const std::vector<char> content = ReadFile(path);
  TF_Buffer* buffer = TF_NewBufferFromString(content.data(), content.size());
  TF_ImportGraphDefOptions* import = TF_NewImportGraphDefOptions();
  TF_GraphImportGraphDef(graph, buffer, import, status);
  Check(status, std::string("importing ") + path);
  TF_DeleteImportGraphDefOptions(import);
  TF_DeleteBuffer(buffer);
  TF_SessionOptions* options = TF_NewSessionOptions();
  TF_Session* session = TF_NewSession(graph, options, status);
  Check(status, "opening a session");
  TF_DeleteSessionOptions(options);
  return session;
}

TF_Output FindTensor(TF_Graph* graph, const std::string& name) {
  const size_t colon = name.find(':');
  const int index = colon == std::string::npos ? 0 : std::atoi(name.c_str() + colon + 1);
  TF_Operation* operation = TF_GraphOperationByName(graph, name.substr(0, colon).c_str());
  if (operation == nullptr) Fail("the graph has no tensor " + name);
  return {operation, index};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) Fail("expected saved_model|frozen PATH INPUT OUTPUT IMAGE DIM...");
  const std::string kind = argv[1];
  std::vector<int64_t> shape;
  for (int i = 6; i < argc; ++i) shape.push_back(std::atoll(argv[i]));

  TF_Status* status = TF_NewStatus();
  TF_Graph* graph = TF_NewGraph();
  TF_Session* session = kind == "frozen" ? OpenFrozenGraph(argv[2], graph, status)
                                         : OpenSavedModel(argv[2], graph, status);

  const std::vector<char> image = ReadFile(argv[5]);
  TF_Tensor* input = TF_AllocateTensor(TF_FLOAT, shape.data(), shape.size(), image.size());
  if (TF_TensorElementCount(input) * static_cast<int64_t>(sizeof(float)) !=
      static_cast<int64_t>(image.size())) {
    Fail("the image has another size than its shape says");
  }
  std::memcpy(TF_TensorData(input), image.data(), image.size());

  const TF_Output feed = FindTensor(graph, argv[3]);
  const TF_Output fetch = FindTensor(graph, argv[4]);
  TF_Tensor* output = nullptr;
  TF_SessionRun(session, nullptr, &feed, &input, 1, &fetch, &output, 1, nullptr, 0, nullptr, status);
  Check(status, "running the model");

  const float* scores = static_cast<const float*>(TF_TensorData(output));
  std::vector<int> order(TF_TensorElementCount(output));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  for (int i = 0; i < std::min<int>(kTop, order.size()); ++i) {
    std::printf("%d %.6f\n", order[i], scores[order[i]]);
  }

  TF_DeleteTensor(output);
  TF_DeleteTensor(input);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
