//! What the caller carries with it, be it a fiber or a plain thread: fiber-locals, hooks, and the region in which it must not suspend.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;
use std::ptr;

use super::runtime::current_groups;
use super::spawn::{Settings, launch_detached, or_panic};
use crate::base::atomic::thread_local;
use crate::fiber::hooks::{Region, When};
use crate::fiber::local::{Inherited, Place};
use crate::fiber::task::discard;
use crate::fiber::{Control, Id};
use crate::os::fork;
use crate::sched::worker::{Worker, here};

/// Keeps the fiber that made it at its worker until it is dropped. See [`pin`].
#[derive(Debug)]
#[must_use = "it keeps the fiber only while it is alive"]
pub struct Pin {
    /// The fiber that it keeps. Another fiber of the thread may drop it, by a thread-local: then it keeps that for good.
    keeps: Option<Id>,
    /// Neither `Send` nor `Sync`: it is its fiber's.
    of: PhantomData<*const ()>,
}

/// Keeps the caller at the worker that it is at, until what this returns is dropped: for a [migratable](crate::Builder::spawn_migratable) fiber that uses for a while what belongs to a thread.
///
/// Any other fiber stays anyway, and so does a plain thread.
///
/// # Suspends
/// No.
///
/// # Panics
/// If the fiber holds 255 of these already.
///
/// # Examples
/// ```
/// let _here = sinew::pin();
/// let before = std::thread::current().id();
/// sinew::yield_now();
/// assert_eq!(std::thread::current().id(), before);
/// ```
pub fn pin() -> Pin {
    let keeps = fiber().map(|(_, me)| {
        me.pin();
        me.id()
    });
    Pin { keeps, of: PhantomData }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some((_, me)) = fiber()
            && self.keeps == Some(me.id())
        {
            me.unpin();
        }
    }
}

thread_local! {
    /// The locals of a plain thread. Fibers never come here: theirs hang at their block.
    static LOCALS: Place = const { Place::new() };
    /// Drops them when the thread ends.
    static KEEPER: Keeper = const { Keeper };
    /// The innermost region of a plain thread.
    static REGION: Cell<Option<Region>> = const { Cell::new(None) };
}

struct Keeper;

impl Drop for Keeper {
    fn drop(&mut self) {
        // The panic hook has reported it, and a thread that ends has no outcome that could show it.
        LOCALS.try_with(Place::end).ok().flatten().into_iter().for_each(discard);
    }
}

/// The fiber that runs on this thread, and its worker.
#[inline]
pub(crate) fn fiber() -> Option<(&'static Worker, &'static Control)> {
    here().and_then(|worker| Some((worker, worker.current()?)))
}

/// Where the caller's locals hang; `None` on a thread that is as good as gone.
pub(crate) fn place() -> Option<&'static Place> {
    match fiber() {
        Some((_, me)) => Some(&me.locals),
        None => place_of_thread(),
    }
}

/// As `place`, on a plain thread. Not inlined: law R1.
#[inline(never)]
fn place_of_thread() -> Option<&'static Place> {
    fork::refuse();
    // SAFETY: it has no destructor, so it stays until the thread's memory goes; the reference does not leave the thread.
    LOCALS.try_with(ptr::from_ref).ok().map(|place| unsafe { &*place })
}

/// Sees to it that the caller's locals are dropped at its end. A fiber's are anyway.
pub(crate) fn keep_locals() {
    if fiber().is_none() {
        let _ = KEEPER.try_with(|_| ());
    }
}

/// Runs `f`, a job for another, on a plain thread with these locals and no others. What it leaves there is dropped when it has ended.
pub(crate) fn with_locals<T>(inherited: Inherited, f: impl FnOnce() -> T) -> T {
    struct End(&'static Place);
    impl Drop for End {
        fn drop(&mut self) {
            // The panic hook has reported it, as at the end of a thread.
            self.0.end().into_iter().for_each(discard);
            self.0.put(Inherited::default());
        }
    }
    let Some(place) = place_of_thread() else { return f() };
    place.put(inherited);
    let _end = End(place);
    f()
}

/// What a fiber spawned by the caller has from it. Runs user code: the `clone` of inherited values.
#[inline]
pub(crate) fn inherit() -> Inherited {
    place().map(Place::inherit).unwrap_or_default()
}

/// The region that the caller, a plain thread, is in. Not inlined: law R1.
#[inline(never)]
pub(crate) fn region_of_thread() -> Option<Region> {
    REGION.try_with(Cell::get).unwrap_or(None)
}

/// The region that the caller is in.
pub(crate) fn region() -> Option<Region> {
    match fiber() {
        Some((worker, me)) => worker.region(me),
        None => region_of_thread(),
    }
}

/// Panics if the caller must not suspend.
#[cold]
#[inline(never)]
#[track_caller]
pub(crate) fn refuse_in_region() {
    if let Some(region) = region() {
        region.refuse();
    }
}

/// Enters a region, or goes back to the one around it; gives the one before. Not inlined: law R1.
#[inline(never)]
fn set_region(region: Option<Region>) -> Option<Region> {
    match fiber() {
        Some((worker, me)) => worker.set_region(me, region),
        None => REGION.try_with(|place| place.replace(region)).unwrap_or(None),
    }
}

/// Runs `f`, inside which suspending panics, in all builds.
///
/// It marks code that other fibers of this thread must not come between: where a thread-local is initialised, a scoped thread-local is set, or a
/// `RefCell` that they use too is borrowed.
///
/// A call whose very purpose is to wait panics in any case: [`yield_now`](crate::yield_now), [`park`](crate::park), [`sleep`](crate::sleep),
/// [`scope`](crate::scope), [`run`](crate::run), and their like; `scope` and `run` do so before they start anything. A call that waits for
/// something which may be there already panics only if it is not: to [`join`](crate::JoinHandle::join) a fiber that has ended
/// is allowed. So is what never suspends, like [`spawn`](crate::spawn()).
///
/// On plain threads it is the same: a call of this crate that would block the thread panics. What blocks a thread by other means, such as
/// `std::thread::sleep` or the drop of a [`Runtime`](crate::Runtime), is not noticed, there or in a fiber.
///
/// Regions nest. A region ends when `f` returns or unwinds: whoever catches the panic outside it may suspend again.
///
/// # Panics
/// At the call inside `f` that would suspend; the message names the place of that call and the place of this one.
///
/// # Examples
/// ```
/// use std::panic::catch_unwind;
///
/// let panic = sinew::run(|| catch_unwind(|| sinew::no_suspend(|| sinew::yield_now())).unwrap_err());
/// assert!(panic.downcast_ref::<String>().unwrap().contains("would suspend"));
/// ```
#[track_caller]
pub fn no_suspend<F, T>(f: F) -> T
where
    F: FnOnce() -> T,
{
    fork::refuse();
    let region = Region { what: "sinew::no_suspend, entered", site: Location::caller() };
    let _leave = Leave(set_region(Some(region)));
    f()
}

/// Leaves a region for the one around it.
struct Leave(Option<Region>);

impl Drop for Leave {
    fn drop(&mut self) {
        set_region(self.0);
    }
}

/// Has `f` called each time the current fiber is about to suspend.
///
/// For code that keeps context in thread-locals, which all fibers of a thread share: take it away here, and put it back in
/// [`on_resume`]. Context that is made for fibers is better kept in a [`fiber_local!`](crate::fiber_local).
///
/// It is called in every call that suspends this fiber, also in one that then finds that it need not, and the `on_resume` hooks always follow. It is not
/// called when the fiber ends. Of several hooks, the one set last is called first, as with destructors. They stay until the fiber's closure has
/// returned; then they are dropped, the last one first, before its fiber-locals. A child does not have them.
///
/// A hook must not suspend: it is a [`no_suspend`] region. One that panics is dropped, and the fiber goes on; when it ends, the panic becomes
/// its outcome, unless it has panicked itself.
///
/// On a plain thread, which no fiber shares, it does nothing.
///
/// # Examples
/// ```
/// # use std::cell::Cell;
/// thread_local!(static USER: Cell<&'static str> = const { Cell::new("nobody") });
///
/// let fiber = sinew::spawn(|| {
///     sinew::on_suspend(|| USER.set("nobody"));
///     sinew::on_resume(|| USER.set("alice"));
///     USER.set("alice");
///     sinew::yield_now(); // other fibers see nobody
///     assert_eq!(USER.replace("nobody"), "alice");
/// });
/// fiber.join().unwrap();
/// ```
#[track_caller]
pub fn on_suspend<F>(f: F)
where
    F: FnMut() + 'static,
{
    set_hook(When::Suspend, Location::caller(), Box::new(f));
}

/// Has `f` called each time the current fiber goes on after a suspension.
///
/// All that [`on_suspend`] says holds here too, but that of several hooks the one set first is called first. It is called before the call that
/// suspended returns; not when the fiber first runs.
#[track_caller]
pub fn on_resume<F>(f: F)
where
    F: FnMut() + 'static,
{
    set_hook(When::Resume, Location::caller(), Box::new(f));
}

fn set_hook(when: When, site: &'static Location<'static>, hook: Box<dyn FnMut()>) {
    let Some((_, me)) = fiber() else { return fork::refuse() };
    // None if the fiber has ended but for the drop of its outcome: then it has no hooks any more.
    if let Some(locals) = me.locals.get_or_make() {
        locals.hooks.push(when, site, hook);
        me.set_hooked();
    }
}

/// Hands the rest of the caller's work to a new fiber that any worker may take: the safe way to rebalance.
///
/// A fiber stays on the worker that first ran it. A long-lived one, like the loop of a connection, that wants to go where there is room calls `hop` with what
/// is left to do, and returns right after it: what `f` captures moves, and is `Send`; what is on the stack stays. The new fiber is detached,
/// and has the name, the stack size and the [inherited](crate::fiber_local) fiber-locals of this one; if this one is [pinned](crate::Builder::pinned), so is it. Unlike a spawned child it is not first of all
/// its own worker's: an idle one with few fibers is woken for it.
///
/// The [`join`](crate::JoinHandle::join) of this fiber does not wait for `f`, nor does a [`scope`](crate::scope) or [`run`](crate::run) that it belongs to.
/// On a plain thread it is a detached [`spawn`](crate::spawn()). In a runtime that is being shut down `f` is dropped unrun, as by that.
///
/// # Suspends
/// No.
///
/// # Panics
/// As [`spawn`](crate::spawn()).
///
/// # Examples
/// ```
/// use std::sync::mpsc::{Sender, channel};
///
/// fn serve(requests: u32, done: Sender<u32>) {
///     for served in 1..=requests {
///         if served == 100 {
///             return sinew::hop(move || serve(requests - served, done));
///         }
///     }
///     done.send(requests).unwrap();
/// }
///
/// let (done, last) = channel();
/// sinew::spawn(move || serve(250, done));
/// assert_eq!(last.recv(), Ok(50));
/// ```
#[track_caller]
pub fn hop<F>(f: F)
where
    F: FnOnce() + Send + 'static,
{
    let like = fiber().map(|(_, me)| me);
    let (name, class) = (like.and_then(Control::name).map(Box::from), like.map(Control::class));
    let pinned = like.is_some_and(Control::is_pinned);
    let (settings, inherited) = (Settings { name, class, pinned, ..Settings::default() }, inherit());
    let site = Location::caller();
    let launched = current_groups().and_then(|groups| launch_detached(&groups, settings, inherited, site, f));
    or_panic(launched, "sinew::hop");
}
