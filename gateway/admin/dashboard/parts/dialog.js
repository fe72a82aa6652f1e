// Asks before something is done that cannot be undone, and says what it will cost.

import { html, useEffect, useRef, useState } from "../vendor/ui.js";

/**
 * @param {object} props
 * @param {string} props.title what is asked
 * @param {string} props.action what the button that does it says
 * @param {() => Promise<any>} props.onConfirm does it; what it throws is shown, and the dialog stays
 * @param {() => void} props.onClose
 */
export function Dialog({ title, action, onConfirm, onClose, children }) {
  const box = useRef(null);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    const back = document.activeElement;
    box.current.showModal();
    return () => back?.focus?.();
  }, []);
  const confirm = async () => {
    setBusy(true);
    setProblem(null);
    try {
      await onConfirm();
      onClose();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onCancel=${onClose} onClose=${onClose}>
    <h2 id="dialog-title">${title}</h2>
    ${children}
    ${problem && html`<p class="problem" role="alert">${problem.message}</p>`}
    <p class="actions">
      <button autofocus onClick=${onClose}>Cancel</button>
      <button class="danger" disabled=${busy} onClick=${confirm}>${busy ? "Working…" : action}</button>
    </p>
  </dialog>`;
}
