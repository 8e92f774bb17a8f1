// Threads that run a function together and wait for one another. The caller is the first of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

constexpr int SPINS = 2000;  // before a thread sleeps: others may need its core

class Team {
  public:
    explicit Team(long size) : size_(size) {
        try {
            for (long rank = 1; rank < size; rank++) threads_.emplace_back([this, rank] { serve(rank); });
        } catch (...) {  // the system starts no more of them
            end();
            throw;
        }
    }
    ~Team() { end(); }
    // Call `work(context, rank)` in every thread.
    void run(void (*work)(void*, long), void* context) {
        work_ = work;
        context_ = context;
        if (size_ > 1) {
            running_.store(size_ - 1, std::memory_order_relaxed);
            {
                std::lock_guard<std::mutex> lock(mutex_);
                round_.fetch_add(1, std::memory_order_release);
            }
            wake_.notify_all();
        }
        work(context, 0);
        for (int spin = 0; running_.load(std::memory_order_acquire) > 0; spin++)
            if (spin > SPINS) std::this_thread::yield();
    }

  private:
    void end() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
            round_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        for (auto& thread : threads_) thread.join();
    }
    void serve(long rank) {
        long seen = 0;
        for (;;) {
            for (int spin = 0; spin < SPINS && round_.load(std::memory_order_acquire) == seen; spin++) __builtin_ia32_pause();
            if (round_.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != seen; });
            }
            seen = round_.load(std::memory_order_acquire);
            if (stop_) return;
            work_(context_, rank);
            running_.fetch_sub(1, std::memory_order_release);
        }
    }
    const long size_;
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<long> round_{0}, running_{0};
    bool stop_ = false;
    void (*work_)(void*, long) = nullptr;
    void* context_ = nullptr;
};

// Where each of `size` threads waits for the others.
class Barrier {
  public:
    void wait(long size) {
        if (size == 1) return;
        const long round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.fetch_add(1, std::memory_order_release);
            return;
        }
        for (int spin = 0; round_.load(std::memory_order_acquire) == round; spin++) {
            if (spin > SPINS)
                std::this_thread::yield();
            else
                __builtin_ia32_pause();
        }
    }

  private:
    std::atomic<long> arrived_{0}, round_{0};
};
