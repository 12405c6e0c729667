;; places.c as a module by hand: the same results, the argument read from the task. Its state has 16 bytes at 64:
;; sum and factor. What the program places goes to memory above 4096, by a pointer that only grows.
(module
  (import "tidemill" "write" (func $write (param i32 i32 i32) (result i32)))
  (import "tidemill" "error" (func $error (param i32 i32)))
  (memory (export "memory") 1)
  (global $next (mut i32) (i32.const 4096))
  (global (export "tidemill_kernel_abi_version") i32 (i32.const 32))
  (data (i32.const 16) "places: a factor")
  (data (i32.const 32) "\01\00\00\00")

  (func (export "tidemill_alloc") (param $size i32) (result i32)
    (local $begin i32)
    (local.set $begin (i32.and (i32.add (global.get $next) (i32.const 15)) (i32.const -16)))
    (global.set $next (i32.add (local.get $begin) (local.get $size)))
    (if (i32.gt_u (global.get $next) (i32.shl (memory.size) (i32.const 16)))
      (then
        (if (i32.eq (memory.grow (i32.add (i32.shr_u (local.get $size) (i32.const 16)) (i32.const 1))) (i32.const -1))
          (then (return (i32.const 0))))))
    (local.get $begin))

  ;; argc at 8, argv at 12
  (func (export "tidemill_fold_init") (param $task i32) (result i32)
    (local $at i32) (local $digit i32) (local $factor i64)
    (if (i32.ne (i32.load offset=8 (local.get $task)) (i32.const 2))
      (then
        (call $error (i32.const 16) (i32.const 16))
        (return (i32.const 0))))
    (local.set $at (i32.load offset=4 (i32.load offset=12 (local.get $task))))
    (block $end
      (loop $digits
        (local.set $digit (i32.load8_u (local.get $at)))
        (br_if $end (i32.eqz (local.get $digit)))
        (local.set $factor
          (i64.add
            (i64.mul (local.get $factor) (i64.const 10))
            (i64.extend_i32_u (i32.sub (local.get $digit) (i32.const 48)))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $digits)))
    (i64.store (i32.const 72) (local.get $factor))
    (i32.const 64))

  (func (export "tidemill_fold_update")
    (param $state i32) (param $input i32) (param $offset i64) (param $data i32) (param $size i32) (result i32)
    (local $factor i64) (local $sum i64) (local $end i32)
    (if (i64.ne (i64.and (local.get $offset) (i64.const 4095)) (i64.const 0)) (then (return (i32.const 3))))
    (local.set $factor
      (i64.mul (i64.load offset=8 (local.get $state)) (i64.extend_i32_u (i32.add (local.get $input) (i32.const 1)))))
    (local.set $sum (i64.load (local.get $state)))
    (local.set $end (i32.add (local.get $data) (local.get $size)))
    (block $done
      (loop $bytes
        (br_if $done (i32.ge_u (local.get $data) (local.get $end)))
        (local.set $offset (i64.add (local.get $offset) (i64.const 1)))
        (local.set $sum
          (i64.add (local.get $sum)
            (i64.mul (i64.mul (i64.load8_u (local.get $data)) (local.get $offset)) (local.get $factor))))
        (local.set $data (i32.add (local.get $data) (i32.const 1)))
        (br $bytes)))
    (i64.store (local.get $state) (local.get $sum))
    (i32.const 0))

  (func (export "tidemill_fold_merge") (param $state i32) (param $partial i32) (param $size i32) (result i32)
    (if (i32.ne (local.get $size) (i32.const 8)) (then (return (i32.const 4))))
    (i64.store (local.get $state) (i64.add (i64.load (local.get $state)) (i64.load (local.get $partial))))
    (i32.const 0))

  (func $give (export "tidemill_fold_state") (param $state i32) (param $task i32) (result i32)
    (call $write (i32.const 0) (local.get $state) (i32.const 8)))

  (func (export "tidemill_fold_finish") (param $state i32) (param $task i32) (result i32)
    (call $give (local.get $state) (local.get $task))))
