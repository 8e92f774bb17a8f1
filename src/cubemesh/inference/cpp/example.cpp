// Scores of images that are raw float32 values (batch, channels, height, width) from 0 to 1.
//
//     c++ -O3 -march=native -std=c++17 example.cpp -o classify
//     ./classify NETWORK.cmnet images.bin > scores.txt
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "cubemesh_network.hpp"

int main(int count, char** words) {
  if (count != 3) {
    std::fprintf(stderr, "usage: classify NETWORK.cmnet IMAGES\n");
    return 2;
  }
  try {
    const cubemesh::Network network(words[1]);
    std::ifstream file(words[2], std::ios::binary);
    if (!file) throw std::runtime_error(std::string(words[2]) + " cannot be opened");
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    cubemesh::Tensor images{network.input_shape(), std::vector<float>(bytes.size() / sizeof(float))};
    std::memcpy(images.data.data(), bytes.data(), images.data.size() * sizeof(float));
    cubemesh::Shape one = images.shape;
    if (one.size() != 4 || std::count(one.begin(), one.end(), 0))
      throw std::runtime_error("this is not a network of images");
    one[0] = 1;
    images.shape[0] = images.data.size() / cubemesh::elements(one);
    const cubemesh::Tensor scores = network(images);
    if (scores.shape.empty() || scores.shape[0] < 1) throw std::runtime_error("the result is not scores of images");
    const std::size_t each = scores.data.size() / scores.shape[0];
    for (std::size_t n = 0; n < scores.data.size(); ++n)
      std::printf("%.9g%c", scores.data[n], (n + 1) % each ? ' ' : '\n');
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
