import json
import socket
import struct
import threading


def read_exact(sock, n):
    data = b""
    while len(data) < n:
        part = sock.recv(n - len(data))
        if not part:
            raise EOFError
        data += part
    return data


class Server:
    def __init__(self):
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        self.rows = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            conn, _ = self.sock.accept()
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn):
        try:
            while True:
                (n,) = struct.unpack("!I", read_exact(conn, 4))
                self.rows.append(json.loads(read_exact(conn, n)))
                conn.sendall(b"ok")
        except EOFError:
            conn.close()


class Client:
    def __init__(self, host, port):
        self.sock = socket.create_connection((host, port))

    def send(self, report):
        text = json.dumps(report, ensure_ascii=False)
        size = len(text.encode())
        self.sock.sendall(struct.pack("!I", size) + text.encode("ascii", "ignore"))
        return read_exact(self.sock, 2)

    def close(self):
        self.sock.close()
