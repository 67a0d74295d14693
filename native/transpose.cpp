// The function `transpose_stage` of the module.
#include "output.h"

namespace gpupipe {
namespace {

// Pixels of a side of a tile: the rows and columns of a tile stay in the first cache.
template <int kSize>
constexpr int kTile = kSize < 4 ? 32 : 16;

// Part of an image.
struct Tile {
  int top, left, rows, columns;
};

// Copies pixels of kSize bytes one by one.
template <int kSize>
void copy_pixels(const Image& from, const Image& to, const Tile& tile) {
  for (int x = tile.left; x < tile.left + tile.columns; ++x) {
    uint8_t* const row = to.row(x);
    for (int y = tile.top; y < tile.top + tile.rows; ++y)
      std::memcpy(row + y * kSize, from.row(y) + x * kSize, kSize);
  }
}

void swap(uint64_t& a, uint64_t& b, int shift, uint64_t low) {
  const uint64_t changed = ((a >> shift) ^ b) & low;
  b ^= changed, a ^= changed << shift;
}

constexpr int kBytes = 8;  // a side of a block

// Swaps the halves of eight rows of eight bytes, then their quarters, then their bytes.
void transpose_bytes(const Image& from, const Image& to, const Tile& tile) {
  for (int x = tile.left; x < tile.left + tile.columns; x += kBytes)
    for (int y = tile.top; y < tile.top + tile.rows; y += kBytes) {
      uint64_t rows[kBytes];
      for (int k = 0; k < kBytes; ++k) std::memcpy(&rows[k], from.row(y + k) + x, kBytes);
      for (const int k : {0, 1, 2, 3}) swap(rows[k], rows[k + 4], 32, 0x00000000ffffffff);
      for (const int k : {0, 1, 4, 5}) swap(rows[k], rows[k + 2], 16, 0x0000ffff0000ffff);
      for (const int k : {0, 2, 4, 6}) swap(rows[k], rows[k + 1], 8, 0x00ff00ff00ff00ff);
      for (int k = 0; k < kBytes; ++k) std::memcpy(to.row(x + k) + y, &rows[k], kBytes);
    }
}

// Copies the blocks of a tile whose pixels have 1 or 3 bytes. Returns their rows and columns.
template <int kSize>
Tile copy_blocks(const Variant& variant, const Image& from, const Image& to, const Tile& tile) {
  Tile blocks = {tile.top, tile.left, 0, 0};
  if constexpr (kSize == 1) {
    blocks.rows = tile.rows / kBytes * kBytes, blocks.columns = tile.columns / kBytes * kBytes;
    transpose_bytes(from, to, blocks);
  }
  if constexpr (kSize == kChannels) {
    const int readable = std::min(tile.columns, from.width - kSideSlack - tile.left);
    blocks.rows = tile.rows / kSideBlock * kSideBlock;
    blocks.columns = std::max(0, readable) / kSideBlock * kSideBlock;
    const int64_t first = int64_t{tile.left} * kSize, start = int64_t{tile.top} * kSize;
    variant.transpose(from.row(tile.top) + first, from.stride, to.row(tile.left) + start,
                      to.stride, blocks.rows, blocks.columns);
  }
  return blocks;
}

template <int kSize>
void transpose(const Variant& variant, const Image& from, const Image& to) {
  constexpr int kSide = kTile<kSize>;
  for (int top = 0; top < from.height; top += kSide)
    for (int left = 0; left < from.width; left += kSide) {
      const int rows = std::min(kSide, from.height - top);
      const int columns = std::min(kSide, from.width - left);
      for (int n = 0; n < std::min(kSide, from.height - top - kSide); ++n) {  // the tile below
        const uint8_t* const row = from.row(top + kSide + n) + int64_t{left} * kSize;
        for (int k = 0; k < columns * kSize; k += 64) __builtin_prefetch(row + k, 0, 2);
      }
      const Tile done = copy_blocks<kSize>(variant, from, to, {top, left, rows, columns});
      copy_pixels<kSize>(from, to,
                         {top, left + done.columns, rows, columns - done.columns});
      copy_pixels<kSize>(from, to, {top + done.rows, left, rows - done.rows, done.columns});
    }
}

void transpose_piece(const Variant& variant, const Image& from, const Image& to) {
  switch (from.pixel_size()) {
    case 1: return transpose<1>(variant, from, to);
    case 2: return transpose<2>(variant, from, to);
    case 3: return transpose<3>(variant, from, to);
    case 4: return transpose<4>(variant, from, to);
    case 8: return transpose<8>(variant, from, to);
    case 12: return transpose<12>(variant, from, to);
    case 16: return transpose<16>(variant, from, to);
  }
}

// Swaps rows and columns of images of any channels, of uint8 or float32. It has no arguments.
class TransposeStage : public Stage {
 public:
  bool read(PyObject* arguments) override { return PyArg_ParseTuple(arguments, ""); }

  bool takes_planes() const override { return true; }

  bool run(int, Image* image, Arena& arena) const override {
    if (!image->channels) return false;
    const Image result = take_alike(arena, *image, image->width, image->height);
    for (int n = 0; n < image->pieces(); ++n)
      transpose_piece(variant_, image->piece(n), result.piece(n));
    *image = result;
    return true;
  }

 private:
  const Variant& variant_ = *g_variant;
};

}  // namespace

PyObject* transpose_stage(PyObject* module, PyObject* arguments) {
  return create_stage<TransposeStage>(module, arguments);
}

}  // namespace gpupipe
