// Calls a function of the user's in another process: the function `call_stage` of the module.
//
//     number of a free process   from a pipe that holds those of all that are free
//     image, planes (C, H, W)    to the memory that both processes map
//     request, answer            JSON, through two pipes
//     output, planes             from the memory, to an image of interleaved pixels
//
// gpupipe/runtime/function_pool.py starts the processes and calls them by the same messages. A
// call that fails has another answer than the one expected. Python then calls the function again,
// and raises its error.
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <vector>

#include "channels.h"
#include "stage.h"

namespace gpupipe {

extern std::atomic<const Variant*> g_variant;

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMaxSeconds = 1e9;  // more nanoseconds would not fit the clock

// Waits until a descriptor can be read. Returns false at the end of the time.
bool wait_for(int fd, Clock::time_point end) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd waiting = {fd, POLLIN, 0};
    const int ready = poll(&waiting, 1, int(std::clamp<int64_t>(left + 1, 0, INT32_MAX)));
    if (ready > 0) return true;
    if (ready == 0 ? left <= 0 : errno != EINTR) return false;
  }
}

bool read_all(int fd, char* bytes, size_t size, Clock::time_point end) {
  while (size > 0) {
    if (!wait_for(fd, end)) return false;
    const ssize_t count = read(fd, bytes, size);
    if (count == 0 || (count < 0 && errno != EINTR)) return false;
    if (count > 0) bytes += count, size -= size_t(count);
  }
  return true;
}

bool write_all(int fd, const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t count = write(fd, bytes, size);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) bytes += count, size -= size_t(count);
  }
  return true;
}

// The messages of multiprocessing.connection.Connection: a length of 4 bytes, and so many bytes.
bool write_message(int fd, const std::string& text) {
  const size_t size = text.size();
  std::string message;
  for (int shift = 24; shift >= 0; shift -= 8) message += char(size >> shift & 0xFF);
  message += text;
  return write_all(fd, message.data(), message.size());
}

// Reads a message to its end, whatever its length. Returns false if it does not come in time.
bool read_message(int fd, const std::string& expected, bool* is_expected, Clock::time_point end) {
  unsigned char length[4];
  if (!read_all(fd, reinterpret_cast<char*>(length), 4, end)) return false;
  size_t size = size_t{length[0]} << 24 | length[1] << 16 | length[2] << 8 | length[3];
  bool is_same = size == expected.size();
  char part[4096];
  for (size_t at = 0, count; size > 0; at += count, size -= count) {
    count = std::min(size, sizeof part);
    if (!read_all(fd, part, count, end)) return false;
    is_same = is_same && expected.compare(at, count, part, count) == 0;
  }
  *is_expected = is_same;
  return true;
}

// Where an image is in the memory of a process. Its planes are packed.
struct Place {
  size_t begin;
  int channels, height, width, item_size;

  size_t plane() const { return size_t(height) * size_t(width) * size_t(item_size); }
  size_t end() const { return begin + size_t(channels) * plane(); }

  std::string text() const {
    return std::string("{\"dtype\": \"") + (item_size == 1 ? "uint8" : "float32") +
           "\", \"shape\": [" + std::to_string(channels) + ", " + std::to_string(height) + ", " +
           std::to_string(width) + "], \"begin\": " + std::to_string(begin) +
           ", \"end\": " + std::to_string(end()) + "}";
  }

  void find_rows(uint8_t* memory, int row, uint8_t* planes[4]) const {
    uint8_t* const first = memory + begin + size_t(row) * size_t(width) * size_t(item_size);
    for (int c = 0; c < channels; ++c) planes[c] = first + size_t(c) * plane();
  }

  void write(const Image& image, uint8_t* memory) const {
    uint8_t* planes[4];
    for (int n = 0; n < height; ++n) {
      find_rows(memory, n, planes);
      split_row(*g_variant, image.row(n), planes, channels, item_size, width, false);
    }
  }

  void read(uint8_t* memory, const Image& image) const {
    uint8_t* planes[4];
    for (int n = 0; n < height; ++n) {
      find_rows(memory, n, planes);
      merge_row(*g_variant, planes, image.row(n), channels, item_size, width);
    }
  }
};

// The processes of a pool, and the pipe that holds the numbers of those that are free.
class Processes {
 public:
  // Reads (pool, free, done, pipes, memories, seconds): see FunctionPool.open_native.
  bool read(PyObject* tuple) {
    PyObject *pool, *pipes, *memories;
    double seconds;
    if (!PyArg_ParseTuple(tuple, "OiiOO!d", &pool, &free_, &done_, &pipes, &PyTuple_Type, &memories,
                          &seconds) ||
        !pipes_.open(pipes, PyBUF_WRITABLE | PyBUF_FORMAT, "pipes", 2))
      return false;
    if (!(seconds >= 0)) return refuse("seconds is negative, or no number");
    const Py_ssize_t count = PyTuple_Size(memories);
    if (!pipes_.is_packed(2 * count, sizeof(int32_t)) || !pipes_.has_format("i"))
      return refuse("pipes is not (processes, 2) of int32");
    memories_.reset(new Buffer[size_t(count)]);
    for (Py_ssize_t n = 0; n < count; ++n) {
      if (!memories_[n].open(PyTuple_GetItem(memories, n), PyBUF_WRITABLE)) return false;
      if (!memories_[n].is_aligned(sizeof(float))) return refuse("a memory is not aligned");
    }
    count_ = count;
    limit_ = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::min(seconds, kMaxSeconds)));
    Py_INCREF(tuple);
    tuple_.reset(tuple);
    return true;
  }

  // Waits for a process that is free, and calls `use(memory, pipes)`, which returns whether the
  // process can go on. If not, or if it is not started, Python starts another one.
  template <typename Use>
  void with_process(const Use& use) const {
    Token token;
    token.done = done_;
    ssize_t count;
    while ((count = ::read(free_, &token.number, sizeof(token.number))) != sizeof(token.number)) {
      if (count >= 0 || (errno != EAGAIN && errno != EINTR)) return;  // the pipe is closed
      pollfd waiting = {free_, POLLIN, 0};
      if (poll(&waiting, 1, -1) < 0 && errno != EINTR) return;
    }
    if (token.number >= count_) return;
    token.pipes = reinterpret_cast<int32_t*>(pipes_.bytes()) + 2 * token.number;
    if (token.pipes[0] >= 0) token.is_usable = use(memories_[token.number], token.pipes);
  }

  Clock::duration limit() const { return limit_; }

 private:
  // A process that is this thread's until the end of the scope.
  struct Token {
    int done = -1;
    uint16_t number = 0;
    int32_t* pipes = nullptr;
    bool is_usable = false;

    ~Token() {
      if (!pipes) return;
      if (!is_usable) pipes[0] = -1;
      write_all(done, reinterpret_cast<const char*>(&number), sizeof(number));
    }
  };

  Reference tuple_;  // holds the pool, which keeps the pipes open
  Buffer pipes_;     // of requests and of answers, of each process; -1 where it is not started
  std::unique_ptr<Buffer[]> memories_;
  Py_ssize_t count_ = 0;
  int free_ = -1, done_ = -1;  // the ends of the pipe of numbers
  Clock::duration limit_;
};

class CallStage : public Stage {
 public:
  bool read(PyObject* arguments) override {
    PyObject *processes, *seeds;
    const char* field;
    if (!PyArg_ParseTuple(arguments, "O!Os(iiii)", &PyTuple_Type, &processes, &seeds, &field,
                          &output_.channels, &output_.item_size, &output_.height,
                          &output_.width))
      return false;
    if (output_.channels < 1 || output_.channels > 4 || output_.height < 0 ||
        output_.width < 0 || output_.height > kMaxSide || output_.width > kMaxSide ||
        (output_.item_size != 1 && output_.item_size != 4))
      return refuse("the output is no image of 1 to 4 channels of uint8 or float32");
    field_ = field;
    return processes_.read(processes) && seeds_.open(seeds, "seeds", 1) &&
           add_rows(seeds_.rows());
  }

  bool run(int row, Image* image, Arena& arena) const override {
    if (!image->channels) return false;
    const Place input = {0, image->channels, image->height, image->width, image->item_size};
    Place output = output_;
    output.begin = (input.end() + page_ - 1) / page_ * page_;
    if (!output.height) output.height = input.height, output.width = input.width;
    const std::string request = "{\"image\": " + input.text() + ", \"field\": " + field_ +
                                ", \"seed\": " + std::to_string(*seeds_[row]) + "}";
    const std::string expected = "{\"output\": " + output.text() + "}";
    const Image result =
        take_image(arena, output.height, output.width, output.channels, output.item_size);
    bool is_done = false;
    processes_.with_process([&](const Buffer& memory, const int32_t* pipes) {
      if (output.end() > memory.size()) return true;
      input.write(*image, memory.bytes());
      if (!write_message(pipes[0], request) ||
          !read_message(pipes[1], expected, &is_done, Clock::now() + processes_.limit()))
        return false;
      if (is_done) output.read(memory.bytes(), result);
      return true;
    });
    if (is_done) *image = result;
    return is_done;
  }

 private:
  const size_t page_ = size_t(sysconf(_SC_PAGESIZE));
  Processes processes_;
  RowValues<int64_t> seeds_;
  std::string field_;  // as JSON
  Place output_{};     // height and width are 0 if they are those of the input
};

}  // namespace

PyObject* call_stage(PyObject* module, PyObject* arguments) {
  return create_stage<CallStage>(module, arguments);
}

}  // namespace gpupipe
