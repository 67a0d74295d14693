// Whole files that are read in parts of many, and the sizes of the plain JPEGs among them.
#pragma once

#include "file_part.h"

#include <vector>

namespace gpupipe {

class FileSet {
 public:
  // Makes the paths. Takes (folder, names, offsets, rows) of `open_files`.
  bool open(PyObject* arguments);

  // Reads files n with begin <= n < end. Does not touch Python. Several threads may read other
  // files at once.
  void read(size_t begin, size_t end);

  size_t count() const { return count_; }
  Part& operator[](size_t n) { return parts_[n]; }
  const int64_t* sizes() const { return sizes_.data(); }

 private:
  std::unique_ptr<Part[]> parts_;
  std::vector<int64_t> sizes_;  // [height, width] of each; [0, 0] of what is no plain JPEG
  size_t count_ = 0;
};

// Returns the files of an object of `open_files`; null, with an exception set, if it is none.
FileSet* get_files(PyObject* object);

}  // namespace gpupipe
