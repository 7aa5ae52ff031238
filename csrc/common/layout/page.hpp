// The page that a layout program prints: kernels and examples, each with views of its copies, products and shared
// memory, as JSON (cli/src/layout/page.rs reads the page). CuTe evaluates every layout, on the host.
#pragma once
#include <cxxabi.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <set>
#include <sstream>
#include <string>
#include <typeinfo>
#include <vector>

#include <cute/tensor.hpp>

namespace tilegemm::layout {

// CuTe's own text of a layout, a shape or a tiler. CuTe marks static numbers with an underscore, which is left out
// here.
template <class T>
std::string text(const T& value) {
  std::ostringstream stream;
  stream << value;
  const std::string marked = stream.str();
  std::string plain;
  for (size_t i = 0; i < marked.size(); i++) {
    const bool is_mark = marked[i] == '_' && i + 1 < marked.size() && std::isdigit(marked[i + 1]);
    if (!is_mark) plain += marked[i];
  }
  return plain;
}
inline std::string text(const std::string& value) { return value; }

// The name of a type, without namespaces and template arguments.
template <class T>
std::string type_name() {
  int status = 0;
  char* full = abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, &status);
  std::string name = status == 0 ? full : typeid(T).name();
  std::free(full);
  name = name.substr(0, name.find('<'));
  const size_t scope = name.rfind("::");
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

// Ends the build where a layout differs from a kernel's own arithmetic.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "a layout differs from the kernel: %s\n", what);
  std::exit(1);
}

inline std::string quoted(const std::string& text) {
  return '"' + text + '"';
}  // no name and no layout has a character to escape

// A layout of two modes, evaluated by CuTe over its whole domain.
struct Table {
  int rows, columns;
  std::vector<int> values;
  int operator()(int row, int column) const { return values.at(size_t(row) * columns + column); }
};
template <class Layout>
Table table(const Layout& layout) {
  Table table{int(cute::size<0>(layout)), int(cute::size<1>(layout)), {}};
  for (int i = 0; i < table.rows; i++) {
    for (int j = 0; j < table.columns; j++) table.values.push_back(int(layout(i, j)));
  }
  return table;
}

// The cells of a matrix, each with two numbers: thread and value, or bank and offset. A grid has only the first rows
// and columns of a large matrix.
class Grid {
 public:
  static constexpr int most = 64;

  Grid(const char* colour, const char* row, const char* column, int rows, int columns)
      : head_("\"colour\":" + quoted(colour) + ",\"row\":" + quoted(row) + ",\"column\":" + quoted(column) +
              ",\"of\":[" + std::to_string(rows) + ',' + std::to_string(columns) + ']'),
        rows_(std::min(rows, most)), columns_(std::min(columns, most)), cells_(size_t(rows_) * columns_, {-1, -1}) {}

  // Sets a cell, unless the cell is outside of the grid, or set before.
  void set(int row, int column, int first, int second) {
    if (row >= rows_ || column >= columns_) return;
    auto& cell = cells_[size_t(row) * columns_ + column];
    if (cell.first < 0) cell = {first, second};
  }

  std::string json() const {
    std::string json = '{' + head_ + ",\"rows\":" + std::to_string(rows_) + ",\"columns\":" + std::to_string(columns_) +
                       ",\"cells\":[";
    for (size_t i = 0; i < cells_.size(); i++) {
      json += (i ? ",[" : "[") + std::to_string(cells_[i].first) + ',' + std::to_string(cells_[i].second) + ']';
    }
    return json + "]}";
  }

 private:
  std::string head_;
  int rows_, columns_;
  std::vector<std::pair<int, int>> cells_;
};

// A matrix in shared memory: the banks of its elements of `bytes`. `offsets`: offsets of the elements.
inline Grid bank_grid(const Table& offsets, int bytes, const char* row, const char* column) {
  Grid grid("bank", row, column, offsets.rows, offsets.columns);
  for (int i = 0; i < offsets.rows; i++) {
    for (int j = 0; j < offsets.columns; j++) grid.set(i, j, offsets(i, j) * bytes / 4 % 32, offsets(i, j));
  }
  return grid;
}

// The cells of a tile of `rows` x `columns` by thread and value. `tv`: (thread, value) -> element of the tile, counted
// down its columns.
inline Grid thread_grid(const Table& tv, const char* row, const char* column, int rows, int columns) {
  Grid grid("thread", row, column, rows, columns);
  for (int t = 0; t < tv.rows; t++) {
    for (int v = 0; v < tv.columns; v++) grid.set(tv(t, v) % rows, tv(t, v) / rows, t, v);
  }
  return grid;
}

// The ways of a bank conflict: the most words of four bytes that lanes, which access shared memory together, want from
// one bank.
inline int ways(const std::vector<int>& addresses, int bytes) {
  std::set<int> banks[32];
  size_t most = 0;
  for (const int address : addresses) {
    for (int word = address / 4; word * 4 < address + bytes; word++) {
      banks[word % 32].insert(word);
      most = std::max(most, banks[word % 32].size());
    }
  }
  return int(most);
}

// Lanes of a warp whose accesses of `bytes` are served together: 128 bytes at most.
inline int lanes_together(int bytes) { return bytes <= 4 ? 32 : 128 / bytes; }

// The most ways in which the lanes of a warp conflict when each accesses `values` elements at a time. `tv`: as of
// `thread_grid`; `offsets`: of a matrix of elements of `bytes`, whose first rows and columns are the tile.
inline int ways_of_threads(const Table& tv, int tile_rows, const Table& offsets, int bytes, int values) {
  const int together = lanes_together(values * bytes);
  int most = 0;
  for (int first = 0; first < tv.rows; first += together) {
    for (int v = 0; v < tv.columns; v += values) {
      std::vector<int> addresses;
      for (int t = first; t < std::min(first + together, tv.rows); t++) {
        addresses.push_back(offsets(tv(t, v) % tile_rows, tv(t, v) / tile_rows) * bytes);
      }
      most = std::max(most, ways(addresses, values * bytes));
    }
  }
  return most;
}

// The most ways in which eight pieces of 16 bytes conflict, over a matrix. The pieces that are accessed together are
// `of_line` neighbours of a line, and the same pieces of the next lines. A line is a row, or, without `along_columns`,
// a column.
inline int ways_of_pieces(const Table& offsets, int bytes, bool along_columns, int of_line) {
  const int piece = 16 / bytes, together = 8;
  const int lines = along_columns ? offsets.rows : offsets.columns,
            length = along_columns ? offsets.columns : offsets.rows;
  int most = 0;
  for (int line = 0; line < lines; line += together / of_line) {
    for (int first = 0; first < length; first += of_line * piece) {
      std::vector<int> addresses;
      for (int i = 0; i < together; i++) {
        const int x = first + i % of_line * piece, y = line + i / of_line;
        addresses.push_back((along_columns ? offsets(y, x) : offsets(x, y)) * bytes);
      }
      most = std::max(most, ways(addresses, 16));
    }
  }
  return most;
}

// One view of a kernel: a copy, a product or a matrix in shared memory.
struct View {
  std::string title;
  std::vector<std::string> facts, accesses;
  int grid = -1;

  template <class T>
  View& fact(const std::string& name, const T& value) {
    facts.push_back('[' + quoted(name) + ',' + quoted(text(value)) + ']');
    return *this;
  }
  View& access(const std::string& by, int lanes, int bytes, int ways) {
    accesses.push_back("{\"by\":" + quoted(by) + ",\"lanes\":" + std::to_string(lanes) +
                       ",\"bytes\":" + std::to_string(bytes) + ",\"ways\":" + std::to_string(ways) + '}');
    return *this;
  }
};

// The page. Equal grids are written once.
class Page {
 public:
  void entry(const std::string& name, const std::string& about) { entries_.push_back({name, about, {}}); }
  // A further view of the last entry; the reference stays valid.
  View& view(const std::string& title) {
    auto& views = entries_.back().views;
    views.push_back({title, {}, {}});
    return views.back();
  }
  void grid(View& view, const Grid& grid) {
    const std::string json = grid.json();
    view.grid = int(std::find(grids_.begin(), grids_.end(), json) - grids_.begin());
    if (view.grid == int(grids_.size())) grids_.push_back(json);
  }

  void print() const {
    std::string json =
        "{\"entries\":[" +
        joined(entries_,
               [](const Entry& entry) {
                 return "\n{\"name\":" + quoted(entry.name) + ",\"about\":" + quoted(entry.about) + ",\"views\":[" +
                        joined(entry.views,
                               [](const View& view) {
                                 return "\n {\"title\":" + quoted(view.title) + ",\"facts\":[" + joined(view.facts) +
                                        "],\"accesses\":[" + joined(view.accesses) +
                                        "],\"grid\":" + (view.grid < 0 ? "null" : std::to_string(view.grid)) + '}';
                               }) +
                        "]}";
               }) +
        "],\n\"grids\":[" + joined(grids_) + "]}\n";
    std::fputs(json.c_str(), stdout);
  }

 private:
  struct Entry {
    std::string name, about;
    std::deque<View> views;
  };

  static std::string joined(const std::vector<std::string>& parts) {
    return joined(parts, [](const std::string& part) { return part; });
  }
  template <class Parts, class Text>
  static std::string joined(const Parts& parts, Text text) {
    std::string all;
    for (const auto& part : parts) all += (all.empty() ? "" : ",") + text(part);
    return all;
  }

  std::vector<Entry> entries_;
  std::vector<std::string> grids_;
};

}  // namespace tilegemm::layout
