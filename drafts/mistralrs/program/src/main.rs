use candle_tilegemm::interpose;
use cudarc::driver::{sys, CudaContext, CudaSlice, CudaStream, DevicePtr, DeviceRepr};
use half::{bf16, f16};
use std::ffi::c_void;
use std::sync::Arc;

macro_rules! declare {
    ($($n:ty: $mm:ident $ex:ident; $($mx:ident)*; $($mxe:ident)*;)*) => { #[allow(dead_code)] unsafe extern "C" { $(
        fn $mm(x: *const $n, w: *const u8, s: *const f32, y: *mut $n, m: i32, n: i32, k: i32, st: i32, by: i32, bx: i32, stream: *mut c_void);
        fn $ex(x: *const $n, w: *const u8, s: *const f32, i: *const u32, y: *mut $n, t: i32, topk: i32, e: i32, n: i32, k: i32, st: i32, by: i32, bx: i32, has: bool, stream: *mut c_void);
        $(fn $mx(x: *const $n, w: *const u8, s: *const u8, b: *const $n, y: *mut $n, m: i32, n: i32, k: i32, hb: bool, stream: *mut c_void);)*
        $(fn $mxe(x: *const $n, w: *const u8, s: *const u8, b: *const $n, i: *const u32, y: *mut $n, t: i32, topk: i32, e: i32, n: i32, k: i32, hb: bool, has: bool, stream: *mut c_void);)*
    )* } };
}
declare! {
    f16: launch_fp8_matmul_f16 launch_fp8_indexed_moe_gemm_f16; launch_mxfp4_matmul_wmma_f16; launch_mxfp4_indexed_moe_gemm_f16 launch_mxfp4_moe_grouped_gemm_wmma_f16;
    bf16: launch_fp8_matmul_bf16 launch_fp8_indexed_moe_gemm_bf16; launch_mxfp4_matmul_wmma_bf16; launch_mxfp4_indexed_moe_gemm_bf16 launch_mxfp4_moe_grouped_gemm_wmma_bf16;
    f16: theirs_fp8_matmul_f16 theirs_fp8_indexed_moe_gemm_f16; theirs_mxfp4_matmul_wmma_f16; theirs_mxfp4_indexed_moe_gemm_f16 theirs_mxfp4_moe_grouped_gemm_wmma_f16;
    bf16: theirs_fp8_matmul_bf16 theirs_fp8_indexed_moe_gemm_bf16; theirs_mxfp4_matmul_wmma_bf16; theirs_mxfp4_indexed_moe_gemm_bf16 theirs_mxfp4_moe_grouped_gemm_wmma_bf16;
}
type Mm<T> = unsafe extern "C" fn(*const T, *const u8, *const f32, *mut T, i32, i32, i32, i32, i32, i32, *mut c_void);
type Ex<T> = unsafe extern "C" fn(*const T, *const u8, *const f32, *const u32, *mut T, i32, i32, i32, i32, i32, i32, i32, i32, bool, *mut c_void);
type Mx<T> = unsafe extern "C" fn(*const T, *const u8, *const u8, *const T, *mut T, i32, i32, i32, bool, *mut c_void);
type Mxe<T> = unsafe extern "C" fn(*const T, *const u8, *const u8, *const T, *const u32, *mut T, i32, i32, i32, i32, i32, bool, bool, *mut c_void);

trait Num: Copy + DeviceRepr + 'static + Default {
    const NAME: &'static str;
    const HALF_UNIT: f64;
    fn of(x: f64) -> Self;
    fn to(self) -> f64;
    const OURS: (Mm<Self>, Ex<Self>, Mx<Self>, [Mxe<Self>; 2]);
    const THEIRS: (Mm<Self>, Ex<Self>, Mx<Self>, [Mxe<Self>; 2]);
}
impl Num for f16 {
    const NAME: &'static str = "f16";
    const HALF_UNIT: f64 = 1.0 / 2048.0;
    fn of(x: f64) -> Self { f16::from_f64(x) }
    fn to(self) -> f64 { self.to_f64() }
    const OURS: (Mm<Self>, Ex<Self>, Mx<Self>, [Mxe<Self>; 2]) = (launch_fp8_matmul_f16, launch_fp8_indexed_moe_gemm_f16, launch_mxfp4_matmul_wmma_f16, [launch_mxfp4_indexed_moe_gemm_f16, launch_mxfp4_moe_grouped_gemm_wmma_f16]);
    const THEIRS: (Mm<Self>, Ex<Self>, Mx<Self>, [Mxe<Self>; 2]) = (theirs_fp8_matmul_f16, theirs_fp8_indexed_moe_gemm_f16, theirs_mxfp4_matmul_wmma_f16, [theirs_mxfp4_indexed_moe_gemm_f16, theirs_mxfp4_moe_grouped_gemm_wmma_f16]);
}
impl Num for bf16 {
    const NAME: &'static str = "bf16";
    const HALF_UNIT: f64 = 1.0 / 256.0;
    fn of(x: f64) -> Self { bf16::from_f64(x) }
    fn to(self) -> f64 { self.to_f64() }
    const OURS: (Mm<Self>, Ex<Self>, Mx<Self>, [Mxe<Self>; 2]) = (launch_fp8_matmul_bf16, launch_fp8_indexed_moe_gemm_bf16, launch_mxfp4_matmul_wmma_bf16, [launch_mxfp4_indexed_moe_gemm_bf16, launch_mxfp4_moe_grouped_gemm_wmma_bf16]);
    const THEIRS: (Mm<Self>, Ex<Self>, Mx<Self>, [Mxe<Self>; 2]) = (theirs_fp8_matmul_bf16, theirs_fp8_indexed_moe_gemm_bf16, theirs_mxfp4_matmul_wmma_bf16, [theirs_mxfp4_indexed_moe_gemm_bf16, theirs_mxfp4_moe_grouped_gemm_wmma_bf16]);
}

struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 { self.0 ^= self.0 << 13; self.0 ^= self.0 >> 7; self.0 ^= self.0 << 17; self.0 }
    fn below(&mut self, n: u64) -> u64 { (self.next() >> 11) % n }
    fn unit(&mut self) -> f64 { (self.next() >> 11) as f64 / (1u64 << 53) as f64 }
    fn signed(&mut self) -> f64 { (0..4).map(|_| self.unit() - 0.5).sum::<f64>() }
}

fn e4m3(c: u8) -> f64 {
    let (s, e, m) = (if c & 0x80 != 0 { -1.0 } else { 1.0 }, (c >> 3 & 15) as i32, (c & 7) as f64);
    if c & 0x7f == 0x7f { f64::NAN } else if e == 0 { s * m / 8.0 * 2f64.powi(-6) } else { s * (1.0 + m / 8.0) * 2f64.powi(e - 7) }
}
fn e2m1(c: u8) -> f64 { [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][(c & 7) as usize] * if c & 8 != 0 { -1.0 } else { 1.0 } }
fn e8m0(c: u8) -> f64 { if c == 255 { f64::NAN } else { 2f64.powi(c as i32 - 127) } }

struct Gpu { stream: Arc<CudaStream> }
impl Gpu {
    fn up<T: DeviceRepr + Copy + 'static>(&self, v: &[T]) -> CudaSlice<T> { self.stream.clone_htod(v).unwrap() }
    fn at<T: DeviceRepr>(&self, s: &CudaSlice<T>) -> u64 { s.device_ptr(&self.stream).0 }
    fn h(&self) -> *mut c_void { self.stream.cu_stream().cast() }
}

struct Fp8 { n: usize, k: usize, by: usize, bx: usize, st: usize, e: usize, w: Vec<u8>, s: Vec<f32> }
impl Fp8 {
    fn new(r: &mut Rng, e: usize, n: usize, k: usize, by: usize, bx: usize, pad: usize, nan: bool) -> Self {
        let st = k.div_ceil(bx) + pad;
        let w = (0..e * n * k).map(|_| { let c = r.next() as u8; if c & 0x7f == 0x7f && !(nan && r.below(8) == 0) { 0x21 } else { c } }).collect();
        let s = (0..e * n.div_ceil(by) * st).map(|_| 2f64.powf(r.unit() * 8.0 - 10.0) as f32).collect();
        Fp8 { n, k, by, bx, st, e, w, s }
    }
    fn at(&self, e: usize, n: usize, k: usize) -> f64 {
        let s = self.s[(e * self.n.div_ceil(self.by) + n / self.by) * self.st + k / self.bx];
        e4m3(self.w[(e * self.n + n) * self.k + k]) * s as f64
    }
}
struct Mxfp4 { n: usize, k: usize, w: Vec<u8>, s: Vec<u8> }
impl Mxfp4 {
    fn new(r: &mut Rng, e: usize, n: usize, k: usize, special: bool) -> Self {
        let w = (0..e * n * k / 2).map(|_| r.next() as u8).collect();
        let s = (0..e * n * k / 32).map(|_| if special && r.below(40) == 0 { [0u8, 254, 255][r.below(3) as usize] } else { 118 + r.below(8) as u8 }).collect();
        Mxfp4 { n, k, w, s }
    }
    fn at(&self, e: usize, n: usize, k: usize) -> f64 {
        let row = e * self.n + n;
        let b = self.w[row * self.k / 2 + k / 2];
        e2m1(if k % 2 == 0 { b & 15 } else { b >> 4 }) * e8m0(self.s[row * (self.k / 32) + k / 32])
    }
}

/// Worst error over its bound; f32 sums: 2^-20 of the sum of magnitudes beside half a unit of y.
fn judge<T: Num>(got: T, y: f64, mags: f64) -> f64 {
    let g = got.to();
    if y.is_nan() || (mags.is_infinite() && !y.is_infinite()) { return if g.is_nan() { 0.0 } else { f64::INFINITY }; }
    let e = T::of(y).to();
    if e.is_infinite() || g.is_infinite() { return if e == g || (mags > 3e38 && (g.is_nan() || g.is_infinite())) { 0.0 } else { f64::INFINITY }; }
    if g.is_nan() { return if mags > 3e38 { 0.0 } else { f64::INFINITY }; }
    (g - y).abs() / (T::HALF_UNIT * y.abs() * 1.001 + mags * 2f64.powi(-20) + 6e-8)
}

fn dot(k: usize, x: impl Fn(usize) -> f64, w: impl Fn(usize) -> f64) -> (f64, f64) {
    (0..k).fold((0.0, 0.0), |(s, m), i| { let p = x(i) * w(i); (s + p, m + p.abs()) })
}

fn xs<T: Num>(r: &mut Rng, n: usize) -> Vec<T> { (0..n).map(|_| T::of(r.signed())).collect() }

fn dense<T: Num>(gpu: &Gpu, r: &mut Rng, m: usize, n: usize, k: usize, by: usize, bx: usize, pad: usize, nan: bool, off: usize) {
    let w = Fp8::new(r, 1, n, k, by, bx, pad, nan);
    let mut x: Vec<T> = xs(r, m * k);
    if nan && k > 2 { x[k / 2] = T::of(f64::INFINITY); }
    // An odd address of the codes.
    let mut codes = vec![0u8; off]; codes.extend(&w.w);
    let (dx, dw, ds, dy) = (gpu.up(&x), gpu.up(&codes), gpu.up(&w.s), gpu.up(&vec![T::of(777.0); m * n + 8]));
    let mut line = String::new();
    for (name, f) in [("ours", T::OURS.0), ("theirs", T::THEIRS.0)] {
        let fresh = vec![T::of(777.0); m * n + 8];
        let mut dy = dy.clone(); gpu.stream.memcpy_htod(&fresh, &mut dy).unwrap();
        unsafe { f(gpu.at(&dx) as _, (gpu.at(&dw) + off as u64) as _, gpu.at(&ds) as _, gpu.at(&dy) as _, m as i32, n as i32, k as i32, w.st as i32, by as i32, bx as i32, gpu.h()) };
        let got = gpu.stream.clone_dtoh(&dy).unwrap();
        let mut worst = 0f64;
        let count = (m * n).min(3000);
        for c in 0..count {
            let at = if m * n <= 3000 { c } else if c < 10 { m * n - 1 - c } else { r.below((m * n) as u64) as usize };
            let (i, j) = (at / n, at % n);
            let (y, mags) = dot(k, |p| x[i * k + p].to(), |p| w.at(0, j, p));
            worst = worst.max(judge(got[at], y, mags));
        }
        let guard = got[m * n..].iter().all(|g| g.to() == T::of(777.0).to());
        line += &format!(" {name} {worst:.3}{}", if guard { "" } else { " GUARD" });
    }
    println!("fp8 {} {m}x{n}x{k} blocks {by}x{bx} pad {pad} special {nan} off {off}:{line}", T::NAME);
}

fn route(r: &mut Rng, t: usize, topk: usize, e: usize, bad: bool) -> Vec<u32> {
    (0..t * topk).map(|_| if bad && r.below(5) == 0 { [e as u32, u32::MAX, 1 << 31][r.below(3) as usize] } else { (r.below(e as u64) * r.below(3) / 2 % e as u64) as u32 }).collect()
}

#[allow(clippy::too_many_arguments)]
fn experts<T: Num>(gpu: &Gpu, r: &mut Rng, t: usize, topk: usize, e: usize, n: usize, k: usize, by: usize, bx: usize, has: bool, bad: bool) {
    let w = Fp8::new(r, e, n, k, by, bx, 0, false);
    let x: Vec<T> = xs(r, if has { t * topk } else { t } * k);
    let ids = route(r, t, topk, e, bad);
    let out = t * topk * n;
    let (dx, dw, ds, di) = (gpu.up(&x), gpu.up(&w.w), gpu.up(&w.s), gpu.up(&ids));
    let mut line = String::new();
    for (name, f) in [("ours", T::OURS.1), ("theirs", T::THEIRS.1)] {
        let dy = gpu.stream.alloc_zeros::<u16>(out + 8).unwrap();
        unsafe { f(gpu.at(&dx) as _, gpu.at(&dw) as _, gpu.at(&ds) as _, gpu.at(&di) as _, gpu.at(&dy) as _, t as i32, topk as i32, e as i32, n as i32, k as i32, w.st as i32, by as i32, bx as i32, has, gpu.h()) };
        let got = gpu.stream.clone_dtoh(&dy).unwrap();
        let got: &[T] = unsafe { std::slice::from_raw_parts(got.as_ptr().cast(), got.len()) };
        let (mut worst, count) = (0f64, out.min(4000));
        for c in 0..count {
            let at = if out <= 4000 { c } else if c < 1000 { out - 1 - c } else { r.below(out as u64) as usize };
            let (p, j) = (at / n, at % n);
            let (row, ex) = (if has { p } else { p / topk }, ids[p]);
            let (y, mags) = if ex as usize >= e { (0.0, 0.0) } else { dot(k, |q| x[row * k + q].to(), |q| w.at(ex as usize, j, q)) };
            worst = worst.max(judge(got[at], y, mags));
        }
        line += &format!(" {name} {worst:.3}");
    }
    println!("fp8 experts {} {t} tokens {topk} of {e}, {n}x{k} blocks {by}x{bx} rows of pairs {has} bad {bad} ({out} outputs):{line}", T::NAME);
}

fn mx_dense<T: Num>(gpu: &Gpu, r: &mut Rng, m: usize, n: usize, k: usize, bias: bool, special: bool) {
    let w = Mxfp4::new(r, 1, n, k, special);
    let (x, b): (Vec<T>, Vec<T>) = (xs(r, m * k), xs(r, n));
    let (dx, dw, ds, db) = (gpu.up(&x), gpu.up(&w.w), gpu.up(&w.s), gpu.up(&b));
    let mut line = String::new();
    for (name, f) in [("ours", T::OURS.2), ("theirs", T::THEIRS.2)] {
        let dy = gpu.up(&vec![T::of(777.0); m * n]);
        unsafe { f(gpu.at(&dx) as _, gpu.at(&dw) as _, gpu.at(&ds) as _, if bias { gpu.at(&db) as _ } else { std::ptr::null() }, gpu.at(&dy) as _, m as i32, n as i32, k as i32, bias, gpu.h()) };
        let got = gpu.stream.clone_dtoh(&dy).unwrap();
        let mut worst = 0f64;
        for c in 0..(m * n).min(3000) {
            let at = if m * n <= 3000 { c } else { r.below((m * n) as u64) as usize };
            let (i, j) = (at / n, at % n);
            let (y, mags) = dot(k, |p| x[i * k + p].to(), |p| w.at(0, j, p));
            let b = if bias { b[j].to() } else { 0.0 };
            worst = worst.max(judge(got[at], y + b, mags + b.abs()));
        }
        line += &format!(" {name} {worst:.3}");
    }
    println!("mxfp4 {} {m}x{n}x{k} bias {bias} special {special}:{line}", T::NAME);
}

#[allow(clippy::too_many_arguments)]
fn mx_experts<T: Num>(gpu: &Gpu, r: &mut Rng, which: usize, t: usize, topk: usize, e: usize, n: usize, k: usize, bias: bool, has: bool, bad: bool) {
    let w = Mxfp4::new(r, e, n, k, false);
    let (x, b): (Vec<T>, Vec<T>) = (xs(r, if has { t * topk } else { t } * k), xs(r, e * n));
    let ids = route(r, t, topk, e, bad);
    let out = t * topk * n;
    let (dx, dw, ds, db, di) = (gpu.up(&x), gpu.up(&w.w), gpu.up(&w.s), gpu.up(&b), gpu.up(&ids));
    let mut line = String::new();
    for (name, f) in [("ours", T::OURS.3[which]), ("theirs", T::THEIRS.3[which])] {
        let dy = gpu.stream.alloc_zeros::<u16>(out).unwrap();
        unsafe { f(gpu.at(&dx) as _, gpu.at(&dw) as _, gpu.at(&ds) as _, if bias { gpu.at(&db) as _ } else { std::ptr::null() }, gpu.at(&di) as _, gpu.at(&dy) as _, t as i32, topk as i32, e as i32, n as i32, k as i32, bias, has, gpu.h()) };
        let got = gpu.stream.clone_dtoh(&dy).unwrap();
        let got: &[T] = unsafe { std::slice::from_raw_parts(got.as_ptr().cast(), got.len()) };
        let mut worst = 0f64;
        for c in 0..out.min(3000) {
            let at = if out <= 3000 { c } else { r.below(out as u64) as usize };
            let (p, j) = (at / n, at % n);
            let (row, ex) = (if has { p } else { p / topk }, ids[p]);
            let (y, mags) = if ex as usize >= e { (0.0, 0.0) } else { dot(k, |q| x[row * k + q].to(), |q| w.at(ex as usize, j, q)) };
            let b = if bias && (ex as usize) < e { b[ex as usize * n + j].to() } else { 0.0 };
            worst = worst.max(judge(got[at], y + b, mags + b.abs()));
        }
        line += &format!(" {name} {worst:.3}");
    }
    println!("mxfp4 experts[{which}] {} {t} tokens {topk} of {e}, {n}x{k} bias {bias} rows of pairs {has} bad {bad}:{line}", T::NAME);
}

/// Median microseconds of arms in turns; each turn of an arm runs on other weights.
fn time(gpu: &Gpu, arms: &mut [(&str, Box<dyn FnMut(usize) + '_>)], budget_ms: f64) -> String {
    let event = || { let mut e = std::ptr::null_mut(); unsafe { sys::cuEventCreate(&mut e, 0).result().unwrap() }; e };
    let (a, b) = (event(), event());
    let s = gpu.stream.cu_stream();
    let mut all: Vec<Vec<f32>> = vec![vec![]; arms.len()];
    let start = std::time::Instant::now();
    for turn in 0..40 {
        for (i, (_, f)) in arms.iter_mut().enumerate() {
            unsafe { sys::cuEventRecord(a, s).result().unwrap() };
            f(turn);
            unsafe { sys::cuEventRecord(b, s).result().unwrap() };
            let mut ms = 0f32;
            unsafe { sys::cuEventSynchronize(b).result().unwrap(); sys::cuEventElapsedTime_v2(&mut ms, a, b).result().unwrap() };
            if turn > 1 { all[i].push(ms * 1e3) }
        }
        if turn > 4 && start.elapsed().as_secs_f64() * 1e3 > budget_ms { break }
    }
    arms.iter().zip(&mut all).map(|((name, _), v)| { v.sort_by(f32::total_cmp); format!(" {name} {:.1}", v[v.len() / 2]) }).collect()
}

fn times(gpu: &Gpu, r: &mut Rng) {
    let bytes = |r: &mut Rng, n: usize| -> CudaSlice<u8> { let one: Vec<u8> = (0..n.min(1 << 20)).map(|_| { let c = r.next() as u8; if c & 0x7f == 0x7f { 1 } else { c } }).collect(); let v: Vec<u8> = one.iter().cycle().take(n).copied().collect(); gpu.up(&v) };
    let (mm, ex, mx, mxe) = (bf16::OURS.0, bf16::OURS.1, bf16::OURS.2, bf16::OURS.3);
    let (tmm, tex, tmx, tmxe) = (bf16::THEIRS.0, bf16::THEIRS.1, bf16::THEIRS.2, bf16::THEIRS.3);
    let z = std::ptr::null();
    let copies = 4;
    for (n, k) in [(14336usize, 4096usize), (4096, 14336)] {
        let ws: Vec<_> = (0..copies).map(|_| bytes(r, n * k)).collect();
        let s = gpu.up(&vec![0.01f32; n / 128 * (k / 128)]);
        for m in [1usize, 8, 16, 64, 256, 1024, 4096] {
            let (x, y) = (gpu.up(&xs::<bf16>(r, m * k)), gpu.stream.alloc_zeros::<u16>(m * n).unwrap());
            let call = |f: Mm<bf16>| { let ws = &ws; let (x, y, s) = (gpu.at(&x), gpu.at(&y), gpu.at(&s)); move |t: usize| unsafe { f(x as _, gpu.at(&ws[t % copies]) as _, s as _, y as _, m as i32, n as i32, k as i32, (k / 128) as i32, 128, 128, gpu.h()) } };
            println!("time fp8 {m}x{n}x{k}:{}", time(gpu, &mut [("ours", Box::new(call(mm))), ("theirs", Box::new(call(tmm)))], 400.0));
        }
    }
    for (e, topk, n, k) in [(128usize, 8usize, 768usize, 2048usize), (128, 8, 2048, 768), (256, 8, 256, 7168)] {
        let ws: Vec<_> = (0..2).map(|_| bytes(r, e * n * k)).collect();
        let s = gpu.up(&vec![0.01f32; e * (n / 128) * (k / 128)]);
        for t in [1usize, 8, 64, 512, 4096] {
            let (x, y) = (gpu.up(&xs::<bf16>(r, t * k)), gpu.stream.alloc_zeros::<u16>(t * topk * n).unwrap());
            let ids = gpu.up(&(0..t * topk).map(|_| r.below(e as u64) as u32).collect::<Vec<_>>());
            let call = |f: Ex<bf16>| { let ws = &ws; let (x, y, s, i) = (gpu.at(&x), gpu.at(&y), gpu.at(&s), gpu.at(&ids)); move |t_: usize| unsafe { f(x as _, gpu.at(&ws[t_ % 2]) as _, s as _, i as _, y as _, t as i32, topk as i32, e as i32, n as i32, k as i32, (k / 128) as i32, 128, 128, false, gpu.h()) } };
            println!("time fp8 experts {t} tokens {topk} of {e}, {n}x{k}:{}", time(gpu, &mut [("ours", Box::new(call(ex))), ("theirs", Box::new(call(tex)))], 300.0));
        }
    }
    for (n, k) in [(4096usize, 2880usize)] {
        let ws: Vec<_> = (0..12).map(|_| bytes(r, n * k / 2)).collect();
        let s = gpu.up(&vec![120u8; n * k / 32]);
        for m in [1usize, 4, 16, 64, 256, 1024] {
            let (x, y) = (gpu.up(&xs::<bf16>(r, m * k)), gpu.stream.alloc_zeros::<u16>(m * n).unwrap());
            let call = |f: Mx<bf16>| { let ws = &ws; let (x, y, s) = (gpu.at(&x), gpu.at(&y), gpu.at(&s)); move |t: usize| unsafe { f(x as _, gpu.at(&ws[t % 12]) as _, s as _, z, y as _, m as i32, n as i32, k as i32, false, gpu.h()) } };
            println!("time mxfp4 {m}x{n}x{k}:{}", time(gpu, &mut [("ours", Box::new(call(mx))), ("theirs", Box::new(call(tmx)))], 200.0));
        }
    }
    for (e, topk, n, k) in [(32usize, 4usize, 5760usize, 2880usize)] {
        let ws = bytes(r, e * n * k / 2);
        let s = gpu.up(&vec![120u8; e * n * k / 32]);
        for t in [1usize, 8, 64, 512] {
            let (x, y) = (gpu.up(&xs::<bf16>(r, t * k)), gpu.stream.alloc_zeros::<u16>(t * topk * n).unwrap());
            let ids = gpu.up(&(0..t * topk).map(|_| r.below(e as u64) as u32).collect::<Vec<_>>());
            let call = |f: Mxe<bf16>| { let (x, y, s, i, w) = (gpu.at(&x), gpu.at(&y), gpu.at(&s), gpu.at(&ids), gpu.at(&ws)); move |_: usize| unsafe { f(x as _, w as _, s as _, z, i as _, y as _, t as i32, topk as i32, e as i32, n as i32, k as i32, false, false, gpu.h()) } };
            let which = usize::from(t > 1);
            println!("time mxfp4 experts {t} tokens {topk} of {e}, {n}x{k}:{}", time(gpu, &mut [("ours", Box::new(call(mxe[which]))), ("theirs", Box::new(call(tmxe[which])))], 200.0));
        }
    }
}

fn all<T: Num>(gpu: &Gpu, r: &mut Rng) {
    for (m, n, k, by, bx, pad, nan, off) in [
        (1, 1, 1, 1, 1, 0, false, 0), (3, 5, 7, 2, 3, 1, false, 0), (17, 129, 1030, 128, 128, 0, false, 0), (33, 576, 7168, 128, 128, 0, false, 0),
        (5, 100, 130, 32, 64, 3, false, 1), (64, 300, 512, 7, 3, 0, false, 0), (8, 256, 256, 4096, 4096, 0, false, 16), (9, 130, 384, 128, 128, 0, true, 0), (4, 8, 0, 1, 1, 0, false, 0),
    ] { dense::<T>(gpu, r, m, n, k, by, bx, pad, nan, off); }
    for (t, topk, e, n, k, by, bx, has, bad) in [
        (1, 8, 128, 96, 256, 128, 128, false, false), (7, 3, 16, 136, 256, 128, 128, false, true), (40, 2, 60, 30, 36, 16, 4, true, true), (300, 4, 8, 520, 384, 128, 128, true, false),
        (33, 1, 4, 64, 128, 64, 32, false, true), (1, 1, 1, 1, 4, 1, 1, false, false), (2000, 8, 256, 16, 128, 128, 128, false, true),
    ] { experts::<T>(gpu, r, t, topk, e, n, k, by, bx, has, bad); }
    for (m, n, k, bias, special) in [(1, 5, 32, true, false), (3, 64, 64, true, false), (4, 130, 2880, false, true), (70, 129, 320, true, false), (5, 33, 96, false, true)] { mx_dense::<T>(gpu, r, m, n, k, bias, special); }
    for (which, t, topk, e, n, k, bias, has, bad) in [(0, 1, 4, 32, 96, 2880, true, false, false), (0, 1, 2, 8, 33, 64, false, true, true), (1, 50, 4, 32, 72, 320, true, false, true), (1, 130, 2, 8, 64, 64, true, true, false)] { mx_experts::<T>(gpu, r, which, t, topk, e, n, k, bias, has, bad); }
}

fn main() {
    let context = CudaContext::new(0).unwrap();
    let gpu = Gpu { stream: context.default_stream() };
    let mut r = Rng(0x9e3779b97f4a7c15);
    println!("{} active {}", context.name().unwrap(), interpose::mistralrs_is_active());
    all::<bf16>(&gpu, &mut r);
    all::<f16>(&gpu, &mut r);
    // More than 2^27 outputs.
    experts::<bf16>(&gpu, &mut r, 8192, 8, 8, 2064, 16, 128, 128, false, false);
    println!("{:?}", interpose::stats());
    if std::env::args().nth(1).as_deref() != Some("right") { times(&gpu, &mut r); }
    println!("{:?}", interpose::stats());
    for g in candle_tilegemm::stats::gemms() { println!("{} {}", g.kernel, g.calls); }
}
