// CPU allocator for PyTorch: a free list per size, for processes that allocate and free the same sizes
// in every step.
//
// An allocator that splits large blocks fragments and requests more memory step after step. Here a
// block is never split: sizes are rounded up to an eighth of a power of two, and each size has its own
// free list. Blocks are aligned to large pages (2 MiB) and request them. Small arrays are left to
// PyTorch's own allocator.

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <sys/mman.h>

#include <c10/core/CPUAllocator.h>

namespace {

constexpr size_t large_page = 2 << 20, least = 1 << 20;

size_t up(size_t n, size_t step) { return (n + step - 1) / step * step; }

size_t rounded(size_t n) {
    size_t step = least / 8;
    while (step * 16 <= n) step *= 2;
    return up(n, step);
}

class SizeClassAllocator final : public c10::Allocator {
  public:
    explicit SizeClassAllocator(c10::Allocator* own) : own_(own) {}

    c10::DataPtr allocate(size_t n) override {
        void* at = n < least ? nullptr : take(rounded(n));
        if (at == nullptr) return own_->allocate(n);  // which raises its own error
        return {at, at, &give, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &give; }
    void copy_data(void* to, const void* from, size_t n) const override {
        default_copy_data(to, from, n);
    }
    void release_all() {
        std::lock_guard<std::mutex> guard(lock_);
        release(held_);
    }
    size_t held() {
        std::lock_guard<std::mutex> guard(lock_);
        return held_;
    }

    static SizeClassAllocator* only;

  private:
    // Free a block, or another allocator's memory.
    static void give(void* at) {
        if (!only->recycle(at)) only->own_->raw_deleter()(at);
    }

    bool recycle(void* at) {
        std::lock_guard<std::mutex> guard(lock_);
        const auto found = sizes_.find(at);
        if (found == sizes_.end()) return false;
        free_[found->second].push_back(at);
        used_ -= found->second;
        return true;
    }

    // A block of `size` bytes; null if the kernel refuses even after all unused blocks were
    // released.
    void* take(size_t size) {
        std::lock_guard<std::mutex> guard(lock_);
        std::vector<void*>& unused = free_[size];
        void* at = nullptr;
        if (!unused.empty()) {
            at = unused.back();
            unused.pop_back();
        } else {
            // Varying sizes, as of sentences, must not add up: hold at most twice the peak in
            // use.
            const size_t most = 2 * std::max(peak_, used_ + size);
            release(held_ + size > most ? held_ + size - most : 0);
            at = fresh(size);
            if (at == nullptr && release(held_) > 0) at = fresh(size);
            if (at == nullptr) return nullptr;
            sizes_[at] = size;
            held_ += size;
        }
        used_ += size;
        peak_ = std::max(peak_, used_);
        return at;
    }

    // Release unused blocks, the largest first, until `wanted` bytes or none is left.
    size_t release(size_t wanted) {
        size_t given = 0;
        for (auto unused = free_.rbegin(); unused != free_.rend(); ++unused) {
            while (given < wanted && !unused->second.empty()) {
                void* at = unused->second.back();
                unused->second.pop_back();
                munmap(at, up(unused->first, large_page));
                sizes_.erase(at);
                held_ -= unused->first;
                given += unused->first;
            }
        }
        return given;
    }

    static void* fresh(size_t size) {
        const size_t whole = up(size, large_page);
        void* found = mmap(nullptr, whole + large_page, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (found == MAP_FAILED) return nullptr;
        char *before = static_cast<char*>(found),
             *at = reinterpret_cast<char*>(up(reinterpret_cast<uintptr_t>(found), large_page));
        if (at > before) munmap(before, at - before);
        munmap(at + whole, before + large_page - at);
        madvise(at, whole, MADV_HUGEPAGE);
        return at;
    }

    c10::Allocator* const own_;
    std::mutex lock_;
    std::unordered_map<void*, size_t> sizes_;         // of every block
    std::map<size_t, std::vector<void*>> free_;       // by size
    size_t held_ = 0, used_ = 0, peak_ = 0;
};

SizeClassAllocator* SizeClassAllocator::only = nullptr;  // never deleted: arrays may outlive it

}  // namespace

extern "C" {

// Install it in the process, once.
void install_allocator() {
    if (SizeClassAllocator::only != nullptr) return;
    SizeClassAllocator::only = new SizeClassAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(SizeClassAllocator::only, 1);
}

// Release unused blocks to the kernel.
void release_unused() {
    if (SizeClassAllocator::only != nullptr) SizeClassAllocator::only->release_all();
}

// Bytes mapped, in use or not.
size_t held_bytes() { return SizeClassAllocator::only == nullptr ? 0 : SizeClassAllocator::only->held(); }

}
