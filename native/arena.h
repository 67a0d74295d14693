// Memory of a thread for the pixels of one sample, reused for the next.
#pragma once

#include "image.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace gpupipe {

// Memory that is never zeroed and kept until the arena dies. Allocating it for each image would
// take longer than many kernels, since the system clears each page at its first use.
class Arena {
 public:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kSlack = 128;  // bytes after each piece that may be read and written

  // Where the memory that is in use ends.
  struct Mark {
    size_t block = 0, used = 0;
  };

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    for (const Block& block : blocks_) std::free(block.bytes);
  }

  // Returns `size` bytes with an alignment of kAlignment, valid until `reset` or `release`. Throws
  // std::bad_alloc.
  uint8_t* take(size_t size) {
    size = (size + kSlack + kAlignment - 1) / kAlignment * kAlignment;
    while (mark_.block < blocks_.size() && blocks_[mark_.block].size - mark_.used < size)
      mark_ = {mark_.block + 1, 0};
    if (mark_.block == blocks_.size()) add_block(size);
    uint8_t* const bytes = blocks_[mark_.block].bytes + mark_.used;
    mark_.used += size;
    return bytes;
  }

  Mark mark() const { return mark_; }

  // Frees all that was taken after the mark.
  void release(const Mark& mark) { mark_ = mark; }

  // Frees all for the next sample. Several blocks become one, which is large enough for this one.
  void reset() {
    mark_ = {};
    if (blocks_.size() < 2) return;
    size_t total = 0;
    for (const Block& block : blocks_) {
      total += block.size;
      std::free(block.bytes);
    }
    blocks_.clear();
    add_block(total);
  }

 private:
  struct Block {
    uint8_t* bytes;
    size_t size;
  };

  void add_block(size_t size) {
    const size_t last = blocks_.empty() ? size_t{1} << 20 : blocks_.back().size;
    size = std::max(size, last);
    blocks_.reserve(blocks_.size() + 1);
    void* bytes = nullptr;
    if (posix_memalign(&bytes, kAlignment, size) != 0) throw std::bad_alloc();
    blocks_.push_back({static_cast<uint8_t*>(bytes), size});
  }

  std::vector<Block> blocks_;
  Mark mark_;
};

// Returns an image of packed rows in the arena.
inline Image take_image(Arena& arena, int height, int width, int channels, int item_size = 1) {
  const int64_t stride = int64_t{width} * channels * item_size;
  return {arena.take(size_t(height) * size_t(stride)), stride, height, width, channels, item_size,
          true};
}

// Returns an image of packed rows in the arena, of planes if the other is.
inline Image take_alike(Arena& arena, const Image& other, int height, int width) {
  Image image = take_image(arena, height, width, other.channels, other.item_size);
  if (!other.has_planes()) return image;
  image.stride = int64_t{width} * other.item_size;
  image.plane = image.stride * height;
  return image;
}

// Copies an image to the arena unless it is there already, so that it can be changed in place.
inline void make_writable(Image* image, Arena& arena) {
  if (image->is_writable) return;
  const Image copy = take_alike(arena, *image, image->height, image->width);
  for (int k = 0; k < image->pieces(); ++k)
    for (int n = 0; n < image->height; ++n)
      std::memcpy(copy.piece(k).row(n), image->piece(k).row(n), size_t(image->row_size()));
  *image = copy;
}

}  // namespace gpupipe
