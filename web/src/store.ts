// Conversations in the browser: IndexedDB, or memory if the browser blocks storage.
import { readStored, type Conversation } from "./conversation";

const table = "conversations";

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export class Store {
  private db: IDBDatabase | undefined;

  // Newest first; unreadable entries are left alone.
  async open(): Promise<Conversation[]> {
    const request = indexedDB.open("millrace", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(table, { keyPath: "id" });
    this.db = await done(request);
    const out: Conversation[] = [];
    for (const x of await done(this.table("readonly").getAll())) {
      try {
        out.push(readStored(x));
      } catch {
        // perhaps from another version
      }
    }
    return out.sort((a, b) => b.updated - a.updated);
  }

  async get(id: string): Promise<Conversation | undefined> {
    const found = this.db && (await done(this.table("readonly").get(id)));
    return found ? readStored(found) : undefined;
  }

  put(c: Conversation) {
    if (this.db) this.table("readwrite").put(c);
  }

  remove(id: string) {
    if (this.db) this.table("readwrite").delete(id);
  }

  private table(mode: IDBTransactionMode): IDBObjectStore {
    return this.db!.transaction(table, mode).objectStore(table);
  }
}
