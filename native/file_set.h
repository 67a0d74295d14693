// Whole files that are read in parts of many, and the sizes of the plain images among them.
#pragma once

#include "file_part.h"
#include "stage.h"

namespace gpupipe {

class FileSet {
 public:
  // Takes (folder, names, offsets, rows) of `open_files`.
  bool open(PyObject* arguments);

  // Reads file n. Writes its size and returns whether it is plain, as read_plain_size does. Does not
  // touch Python. Several threads may read other files at once.
  bool read(size_t n, int formats, int64_t* height_width);

  size_t count() const { return count_; }
  Part& operator[](size_t n) { return parts_[n]; }

 private:
  std::string make_path(size_t n) const;

  std::string folder_;
  RowValues<uint8_t> names_;
  RowValues<int64_t> offsets_, rows_;
  std::unique_ptr<Part[]> parts_;
  size_t count_ = 0;
};

// Returns the files of an object of `open_files`; null, with an exception set, if it is none.
FileSet* get_files(PyObject* object);

}  // namespace gpupipe
