//! Calls of functions that their library still has, through the dispatcher: to our kernels, or to the library's function with the arguments unchanged.

use super::count::{count_forwarded, Forwarded, OURS, REFUSED};
use super::failure::{after_failure, after_panic, Next, Progress};
#[cfg(feature = "preload")]
use super::lt_factors::is_ahead;
use super::mode::{exact_sums, mode, Mode};
use super::symbol::Call;
use super::tell::{tell, Told};
use crate::dispatch::{Dispatcher, Policy};
use crate::error::{Error, Result};
use crate::kernel::{Fusion, Role};
use crate::launch::{self, Pointers, Queue};
use crate::problem::{Activation, Epilogue, F32Mode, Format, Problem};
use crate::trace;
use std::cell::Cell;
use std::ffi::c_int;

pub(super) const STATUS_SUCCESS: c_int = 0;
pub(super) const STATUS_NOT_INITIALIZED: c_int = 1;
const STATUS_EXECUTION_FAILED: c_int = 13;
const STATUS_NOT_SUPPORTED: c_int = 15;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Why a call is outside the contract, and the error where one of our settings or a library is the cause.
pub(super) type Refusal = (Forwarded, Option<Error>);

/// The arguments of one call.
pub(super) trait Contract {
    /// The product that the call asks for. This function is the contract of the interposer.
    ///
    /// # Safety
    /// The caller's arguments are as the vendor's function requires.
    unsafe fn product(&self) -> std::result::Result<Product, Refusal>;

    /// The call in words, for a trace.
    fn describe(&self) -> String;
}

/// The product that a call asks for.
pub(super) struct Product {
    pub problem: Problem,
    pub pointers: Pointers,
    /// The stream of the call, and its handle of cuBLAS. A call of cuBLASLt has no such handle: cuBLASLt runs such a product by the unchanged call
    /// alone, with bias and activation in the epilogue.
    pub queue: Queue,
    /// Whether the unchanged call may round f32 operands to TF32.
    pub is_tf32: bool,
}

impl Product {
    fn is_of_lt(&self) -> bool {
        self.queue.cublas.is_null()
    }

    /// Whether the vendor's library, given the unchanged call, computes the planned product.
    fn is_as_planned(&self, canonical: &Problem) -> bool {
        let same_batch = canonical.batch_count() == self.problem.batch_count();
        self.is_of_lt() || same_batch && (canonical.f32_mode != F32Mode::Tf32 || self.is_tf32)
    }
}

/// A call that the vendor's library can run as well.
pub(super) struct Forwardable<'a> {
    pub contract: &'a dyn Contract,
    /// Calls the vendor's function with the arguments unchanged.
    pub forward: &'a dyn Fn() -> c_int,
}

impl Call for Forwardable<'_> {
    type Status = c_int;

    unsafe fn run(&self, progress: &Cell<Progress>) -> c_int {
        if INSIDE.replace(true) {
            // libcublas calls cublasLtMatmul: such a call is the vendor's own way to run a product that is decided on.
            return (self.forward)();
        }
        // SAFETY: the caller's promises are passed on.
        let status = unsafe { self.take(progress) };
        INSIDE.set(false);
        status
    }

    unsafe fn after_panic(&self, progress: Progress) -> c_int {
        let status = self.go_on(after_panic(progress, mode()), Forwarded::Failed);
        INSIDE.set(false);
        status
    }
}

impl Forwardable<'_> {
    /// Runs the call on our kernels or forwards the call.
    unsafe fn take(&self, progress: &Cell<Progress>) -> c_int {
        let mode = mode();
        if mode == Mode::Off {
            return self.forward(Forwarded::Off);
        }
        // SAFETY: the caller's promises are passed on.
        let product = match unsafe { self.contract.product() } {
            Ok(product) => product,
            Err((reason, None)) => {
                if mode == Mode::Trace {
                    trace::outside(format!("{}: forwarded to cuBLAS ({reason:?})", self.contract.describe()));
                }
                return self.forward(reason);
            }
            Err((reason, Some(error))) => return self.fail(None, (reason, error), progress, mode),
        };
        // SAFETY: the caller's pointers satisfy the requirements of the vendor's library, and our launch requires the same.
        match unsafe { run(&product, mode, progress) } {
            Ok(Taken::Ours) => {
                OURS.count();
                STATUS_SUCCESS
            }
            Ok(Taken::Changed) => {
                count_forwarded(Forwarded::Chosen);
                STATUS_SUCCESS
            }
            Ok(Taken::No) => self.forward(Forwarded::Chosen),
            Err(error) => {
                if mode == Mode::Trace && matches!(error, Error::Unsupported { .. } | Error::Forced { .. }) {
                    trace::unplanned(&product.problem);
                }
                self.fail(Some(&product.problem), (reason_of(&error), error), progress, mode)
            }
        }
    }

    /// The end of a call inside the contract that failed on our side, and a message where the user should know.
    fn fail(
        &self,
        problem: Option<&Problem>,
        (reason, error): (Forwarded, Error),
        progress: &Cell<Progress>,
        mode: Mode,
    ) -> c_int {
        let next = after_failure(progress.get(), &error, mode);
        match next {
            Next::Forward => report(problem, reason, &error),
            Next::Refuse => {
                tell(&format!("TILEGEMM=force, and a call inside the contract was not taken ({reason:?}): {error}"));
            }
            Next::Fail => tell(&format!("a product that is added to C failed; C may have part of it: {error}")),
        }
        self.go_on(next, reason)
    }

    /// Finishes a call that failed on our side: forwards, refuses or fails the call.
    fn go_on(&self, next: Next, reason: Forwarded) -> c_int {
        let status = match next {
            Next::Forward => return self.forward(reason),
            Next::Refuse => STATUS_NOT_SUPPORTED,
            Next::Fail => STATUS_EXECUTION_FAILED,
        };
        REFUSED.count();
        status
    }

    fn forward(&self, reason: Forwarded) -> c_int {
        count_forwarded(reason);
        (self.forward)()
    }
}

/// Reports why an eligible call is forwarded. Each distinct product is one event. The first failure (of
/// a setting, the library or a launch) also goes to stderr, because a program without a subscriber sees no event.
fn report(problem: Option<&Problem>, reason: Forwarded, error: &Error) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    static TOLD: Told<(Option<Problem>, Forwarded)> = Told::new(1024);
    if TOLD.is_new((problem.copied(), reason)) {
        tracing::warn!(target: "tilegemm::interpose", %error, "forwarded to cuBLAS");
    }
    if reason == Forwarded::Failed {
        ONCE.call_once(|| tell(&format!("products go to cuBLAS: {error}")));
    }
}

fn reason_of(error: &Error) -> Forwarded {
    match error {
        Error::Unsupported { .. } | Error::Forced { .. } => Forwarded::Unsupported,
        _ => Forwarded::Failed,
    }
}

/// The outcome of a call inside the contract.
enum Taken {
    /// One of our kernels runs the call.
    Ours,
    /// cuBLAS runs the call with changed arguments: a batch over one matrix becomes a single product (a batch of 1024
    /// single rows takes 200 times as long), the compute type becomes TF32 because the process asks for TF32, or sums
    /// are in f32 ([`exact_sums`]).
    Changed,
    /// The dispatcher chose the vendor's library, and the call is forwarded unchanged.
    No,
}

unsafe fn run(product: &Product, mode: Mode, progress: &Cell<Progress>) -> Result<Taken> {
    let problem = &product.problem;
    let dispatcher = launch::dispatcher(launch::current_device()?)?;
    let Some(policy) = policy(product, dispatcher, mode)? else { return Ok(Taken::No) };
    let fusion = dispatcher.fuse(problem, policy)?;
    if fusion == Fusion::Full {
        // SAFETY: the caller's promises are passed on.
        return unsafe { run_whole(product, problem, dispatcher, policy, progress) };
    }
    let kept = Problem { epilogue: problem.epilogue.keep(fusion).0, ..*problem };
    // SAFETY: as above.
    let taken = unsafe { run_whole(product, &kept, dispatcher, policy, progress)? };
    if !matches!(taken, Taken::No) {
        // SAFETY: as above.
        unsafe { launch::finish(problem, fusion, product.pointers, product.queue.stream)? };
    }
    Ok(taken)
}

/// The limits of the choice for a product. `None` where the call is forwarded unchanged whatever our kernels are.
fn policy(product: &Product, dispatcher: &Dispatcher, mode: Mode) -> Result<Option<Policy>> {
    let problem = &product.problem;
    let policy = launch::policy()?;
    if policy.forced().is_some() {
        return Ok(Some(policy));
    }
    #[cfg(feature = "preload")]
    if problem.a.format == Format::F8E4M3 && mode != Mode::Force {
        // No kernel of the table stands for cuBLASLt's.
        return Ok((!policy.vendor || is_ahead(problem)).then_some(policy));
    }
    // cuBLAS rounds a 16-bit product before it adds beta * C, and a call of cuBLASLt is never changed.
    let needs_own = problem.epilogue.reads_c() || product.is_of_lt();
    if mode == Mode::Force || (needs_own && wants_exact(problem)?) {
        return Ok(Some(own(policy)));
    }
    let epilogue = &problem.epilogue;
    let has_c = epilogue.reads_c() && !epilogue.in_place;
    let is_fused = epilogue.bias.is_some() || epilogue.activation != Activation::Identity || has_c;
    if !product.is_of_lt() || !is_fused || !policy.vendor {
        return Ok(Some(policy));
    }
    // Bias, activation and a C of its own cost cuBLASLt next to nothing: the product without them decides between cuBLASLt and our kernels.
    let bare = problem.with(|problem| match has_c {
        true => problem.epilogue = Epilogue::new(problem.epilogue.alpha(), 0.0),
        false => (problem.epilogue.bias, problem.epilogue.activation) = (None, Activation::Identity),
    });
    let is_vendor = dispatcher.with_plan(&bare, policy, |plan| {
        let is_vendor = plan.kernel.role == Role::Vendor;
        if is_vendor {
            launch::begin(plan, plan);
        }
        is_vendor
    })?;
    Ok((!is_vendor).then(|| own(policy)))
}

/// Our own kernels, within the limits of `policy`.
pub(super) fn own(policy: Policy) -> Policy {
    Policy::own().with_workspace(policy.workspace).with_batch_invariance(policy.batch_invariant)
}

/// Launches `problem`, which is the product or the product with a part of its epilogue.
unsafe fn run_whole(
    product: &Product,
    problem: &Problem,
    dispatcher: &Dispatcher,
    policy: Policy,
    progress: &Cell<Progress>,
) -> Result<Taken> {
    let Product { pointers, queue, .. } = *product;
    dispatcher.with_plan(problem, policy, |plan| {
        let plan = plan.settled();
        // SAFETY: the stream of the call.
        let ready = unsafe { launch::ready(plan, queue.stream)? };
        // Only cards whose library has kernels for fp8 run such calls.
        if ready.kernel.role == Role::LastResort && problem.a.format == Format::F8E4M3 && policy.vendor {
            launch::begin(plan, ready);
            return Ok(Taken::No);
        }
        let vendor = ready.kernel.role == Role::Vendor;
        let is_exact = product.is_of_lt() || !wants_exact(problem)?;
        // A call of cuBLASLt has no handle of cuBLAS for a product of copies.
        let is_on_operands = product.is_of_lt() || ready.packing.is_none();
        let is_as_it_came = is_on_operands && product.is_as_planned(&ready.canonical.problem) && is_exact;
        // What is being learned is launched here, between events, and unchanged as well; a call of cuBLASLt has no handle for that.
        let is_learned = !product.is_of_lt() && launch::contest(plan)?.is_some();
        if vendor && is_as_it_came && !is_learned {
            launch::begin(plan, ready);
            return Ok(Taken::No);
        }
        progress.set(Progress::launching(problem));
        // SAFETY: the caller's pointers and the call's sizes agree; the stream is the stream of the call.
        unsafe { launch::launch(plan, pointers, queue)? };
        Ok(if vendor { Taken::Changed } else { Taken::Ours })
    })?
}

/// Whether the call needs sums in f32, so that an unchanged call to cuBLAS is not allowed.
fn wants_exact(problem: &Problem) -> Result<bool> {
    let is_half = matches!(problem.a.format, Format::F16 | Format::BF16);
    Ok(is_half && exact_sums()?)
}
